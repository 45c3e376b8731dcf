//! A node's budget of memory for frames that have begun to arrive: a header promises bytes, and a
//! peer may never send them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The budget, shared by all connections of a node.
#[derive(Clone)]
pub struct Promises {
    left: Arc<AtomicUsize>,
}

/// Part of the budget, until it is dropped.
pub(super) struct Promised {
    budget: Promises,
    bytes: usize,
}

impl Promises {
    /// A budget of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { left: Arc::new(AtomicUsize::new(bytes)) }
    }

    /// Takes so many bytes from the budget; `None` if there are fewer.
    pub(super) fn take(&self, bytes: usize) -> Option<Promised> {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.ok().map(|_| Promised { budget: self.clone(), bytes })
    }
}

impl Drop for Promised {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_never_exceed_the_budget_and_are_given_back() {
        let budget = Promises::new(100);
        let first = budget.take(60).expect("there are 100");
        assert!(budget.take(60).is_none());
        let second = budget.take(40).expect("there are 40");
        assert!(budget.take(1).is_none());
        drop(first);
        assert!(budget.take(61).is_none() && budget.take(60).is_some());
        drop(second);
        assert!(budget.take(100).is_some());
    }
}
