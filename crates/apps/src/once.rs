//! What one worker does for all of them, once, whoever that is: to write down what they have
//! learnt, for one.

use slackwater::Session;
use slackwater::data_leases::LeasedInput;

/// Does something once, when all workers have come here. Whoever is there calls this; the first of
/// them, by rank, does the work and returns what it comes to. Should it be lost on the way, another
/// does it in its place, so it must be such that half of it does no harm. Nobody returns before it
/// is done.
///
/// It is a lease like any other: that of a worker which is lost is another's.
pub fn once<R, E: From<slackwater::Error>>(
    session: &Session,
    mut work: impl FnMut() -> Result<R, E>,
) -> Result<Option<R>, E> {
    let mut leases = session.leases(&format!(".once {}", session.unique_number()), &LeasedInput::new(1))?;
    session.barrier()?;
    // Plans may differ for a moment: then two take themselves for the first, or none does, and the
    // lease decides.
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
