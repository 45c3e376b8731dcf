//! The guard of a node's connections: which peers it talks to, and which frames it accepts.
//!
//! | when | what must hold |
//! | --- | --- |
//! | a handshake has ended on a connection that this node made | the peer has the role of the node that was called, and is the process that its name is bound to |
//! | a frame arrives | its sender's name is bound to the peer of the connection, and the role may send it (`wire::may_send`). A process without a place may only ask |
//!
//! A name is bound to a key, or to the name in a certificate of the operator's, which may be
//! renewed.
//!
//! A name that the coordinator has not given yet (a provisional name) is bound to the peer of the
//! connection that uses it first, as long as that connection is open. In an insecure run the guard
//! accepts everything.

use super::stream::ByteStream;
use super::tls::TlsStream;
use crate::refusal::Refusal;
use identity::{Credentials, PeerIdentity};
use mio::net::TcpStream;
use std::collections::BTreeMap;
use std::io::Result;
use types::{Binding, NodeId, RefusalReason, Role};
use wire::{Frame, Member, may_send, may_send_unseated};

/// Names of nodes from this index on are provisional: the coordinator gives none of them.
const PROVISIONAL: u32 = 0x1000_0000;

/// How a node's connections are secured.
#[derive(Clone, Debug)]
pub enum Security {
    /// Not at all: every process that can reach the node controls the run.
    Insecure,
    /// By mutual TLS 1.3, with these credentials.
    Tls(Credentials),
}

/// What the guard decides about a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The node handles it.
    Accepted,
    /// The node drops it: it has not been told of the sender yet. The sender repeats what matters.
    NotYet,
    /// The peer breaks the rules: the connection closes.
    Refused(Refusal),
}

impl Verdict {
    fn refused(reason: RefusalReason, words: String) -> Self {
        Self::Refused(Refusal::new(reason, words))
    }
}

/// Which peers a node talks to.
pub(super) struct Guard {
    security: Security,
    /// What names are bound to.
    bindings: BTreeMap<NodeId, Binding>,
}

fn role_of(node: NodeId) -> Role {
    match node {
        NodeId::Coordinator => Role::Coordinator,
        NodeId::Server(_) => Role::Server,
        NodeId::Worker(_) => Role::Worker,
    }
}

/// Whether a process calls itself so until the coordinator has named it.
pub(super) fn is_provisional(node: NodeId) -> bool {
    match node {
        NodeId::Coordinator => false,
        NodeId::Server(index) | NodeId::Worker(index) => index >= PROVISIONAL,
    }
}

impl Guard {
    pub fn new(security: Security) -> Self {
        Self { security, bindings: BTreeMap::new() }
    }

    /// The credentials of this node; `None` in an insecure run.
    pub fn credentials(&self) -> Option<&Credentials> {
        match &self.security {
            Security::Insecure => None,
            Security::Tls(credentials) => Some(credentials),
        }
    }

    /// What the name of a peer is bound to; `None` in an insecure run.
    pub fn binding_of(&self, peer: &PeerIdentity) -> Option<Binding> {
        self.credentials().map(|credentials| credentials.binding_of(peer))
    }

    /// Makes the stream of a connection that this node has made.
    pub fn call(&self, stream: TcpStream) -> Result<ByteStream> {
        match &self.security {
            Security::Insecure => Ok(ByteStream::Tcp(stream)),
            Security::Tls(credentials) => Ok(ByteStream::Tls(Box::new(TlsStream::call(stream, credentials)?))),
        }
    }

    /// Makes the stream of a connection that this node has accepted.
    pub fn accept(&self, stream: TcpStream) -> Result<ByteStream> {
        match &self.security {
            Security::Insecure => Ok(ByteStream::Tcp(stream)),
            Security::Tls(credentials) => Ok(ByteStream::Tls(Box::new(TlsStream::accept(stream, credentials)?))),
        }
    }

    /// Learns what names are bound to.
    pub fn know(&mut self, members: &[Member]) {
        for member in members {
            match &member.binding {
                Some(binding) => self.bindings.insert(member.node, binding.clone()),
                None => self.bindings.remove(&member.node),
            };
        }
    }

    /// Whether a peer is known to be a node of the run.
    pub fn has_place(&self, peer: &PeerIdentity) -> bool {
        peer.role() == Role::Coordinator || self.bindings.values().any(|binding| peer.is(binding))
    }

    /// Whether the peer that answered is the node that was called. Returns why not.
    pub fn check_called(&self, node: NodeId, peer: &PeerIdentity) -> std::result::Result<(), Refusal> {
        if peer.role() != role_of(node) {
            let words = format!("the process there is a {} ({}), and not {node}", peer.role(), peer.name);
            return Err(Refusal::new(RefusalReason::Role, words));
        }
        match self.bindings.get(&node) {
            Some(binding) if !peer.is(binding) => {
                let words =
                    format!("the process there is {} with key {}, and {node} has {binding}", peer.name, peer.key);
                Err(Refusal::new(RefusalReason::NameTaken, words))
            }
            _ => Ok(()),
        }
    }

    /// Judges a frame by the peer of its connection; `None` in an insecure run.
    pub fn judge(&self, peer: Option<&PeerIdentity>, frame: &Frame) -> Verdict {
        let (Security::Tls(credentials), Some(peer)) = (&self.security, peer) else {
            return match self.security {
                Security::Insecure => Verdict::Accepted,
                Security::Tls(_) => {
                    Verdict::refused(RefusalReason::NotAuthenticated, "the handshake has not ended".to_owned())
                }
            };
        };
        let from = frame.head.from;
        let role = peer.role();
        let may_be = match role {
            // A reader is no node of the run: it uses a provisional name of a worker.
            Role::Reader => matches!(from, NodeId::Worker(_)) && is_provisional(from),
            Role::Worker | Role::Server | Role::Coordinator => role == role_of(from),
        };
        if !may_be {
            return Verdict::refused(RefusalReason::Role, format!("a {role} ({}) calls itself {from}", peer.name));
        }
        let own = credentials.name().role();
        if !may_send(role, &frame.message, own) {
            let kind = frame.message.kind_name();
            let words = format!("a {role} ({}) may not send {kind} to a {own}", peer.name);
            return Verdict::refused(RefusalReason::Role, words);
        }
        if is_provisional(from) {
            let kind =
                || format!("{} has no place in the run and may not send {}", peer.name, frame.message.kind_name());
            return match may_send_unseated(&frame.message) {
                true => Verdict::Accepted,
                false => Verdict::refused(RefusalReason::Role, kind()),
            };
        }
        if from == NodeId::Coordinator {
            return Verdict::Accepted;
        }
        match self.bindings.get(&from) {
            Some(binding) if peer.is(binding) => Verdict::Accepted,
            Some(binding) => {
                let words =
                    format!("{} calls itself {from} and has key {}, but {from} has {binding}", peer.name, peer.key);
                Verdict::refused(RefusalReason::NameTaken, words)
            }
            None => Verdict::NotYet,
        }
    }
}

#[cfg(test)]
mod tests;
