//! Work that one worker does for all while they wait, such as writing the model. If that worker is
//! lost before it has committed the work, another does the work again.

use slackwater::Session;
use slackwater::data_leases::LeasedInput;

/// Does `work` once, on one worker, after all workers have called this. The first worker, by rank,
/// does it and gets its result; the others get none. No worker returns before it is done.
///
/// If the first worker is lost, another does the work in its place. So `work` must do no harm if it
/// was half done before.
///
/// It uses a data lease of one range, which is granted again if its worker is lost.
pub fn once<R, E: From<slackwater::Error>>(
    session: &Session,
    mut work: impl FnMut() -> Result<R, E>,
) -> Result<Option<R>, E> {
    let mut leases = session.leases(&format!(".once {}", session.unique_number()), &LeasedInput::new(1))?;
    session.barrier()?;
    // Workers may have different plans for a moment. Then two of them may believe that they are the
    // first, or none; the lease decides which of them does the work.
    let is_first = session.live_ranks().first() == Some(&session.rank());
    if !is_first {
        session.barrier()?;
    }
    let mut done = None;
    while let Some(lease) = leases.next_lease()? {
        done = Some(work()?);
        leases.commit(lease)?;
    }
    if is_first {
        session.barrier()?;
    }
    Ok(done)
}
