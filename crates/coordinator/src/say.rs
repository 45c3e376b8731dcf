//! How the coordinator's parts send a message to a node.

use types::NodeId;
use wire::{Control, Frame, Head, Message, Outbox};

/// Sends `control` to one node.
pub(crate) fn say(to: NodeId, control: Control, out: &mut Outbox) {
    out.send(Frame { head: Head::plain(NodeId::Coordinator, to), message: Message::Control(control) });
}
