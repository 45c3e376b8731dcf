//! Whether codecs are lossy: a question that a program asks before it makes a table.

use codec::Pipeline;
use types::Codecs;

/// Whether any of these codecs is lossy, so that values may change. `auto` counts as lossy. Unknown
/// names count as lossless here; making the table refuses them.
///
/// ```
/// assert!(slackwater::policy::is_lossy(&["keys", "1bit"]) && slackwater::policy::is_lossy(&["auto"]));
/// assert!(!slackwater::policy::is_lossy(&["keys", "lz4"]));
/// ```
#[must_use]
pub fn is_lossy<S: AsRef<str>>(names: &[S]) -> bool {
    let is_auto = names.iter().any(|name| name.as_ref() == Codecs::AUTO);
    is_auto || Pipeline::parse(names.iter().map(AsRef::as_ref)).is_ok_and(|pipeline| pipeline.is_lossy())
}
