//! Learning programs, written with sessions, tables and minibatches. Each algorithm is one module.
//!
//! - Programs of sparse examples implement [`Program`](program::Program), which computes the
//!   gradients of a minibatch: [`linear`], [`logistic`], [`softmax`], [`fm`].
//!   [`train`](train::train) pulls and pushes for them. [`gather`] finds the keys of a minibatch.
//! - [`mlp`] learns from dense examples. [`product`] multiplies its matrices.
//! - [`proximal`] solves ℓ1 logistic regression to the optimum, block by block.
//! - [`rounds`] is the training loop that the programs share: read a minibatch, learn from it, end
//!   the clock. [`leased`] is the loop over leased data, and [`tally`] counts what all workers have
//!   learnt.
//! - [`scaling`] standardises features. [`shrink`] gives tables codecs. [`once`] does work on one
//!   worker for all.
//! - [`model`] saves what was learnt, [`predict`] predicts with it, and [`figures`] measures how
//!   well.

pub mod figures;
pub mod fm;
pub mod gather;
pub mod leased;
pub mod linear;
pub mod logistic;
pub mod mlp;
pub mod model;
pub mod once;
mod output;
pub mod predict;
pub mod product;
pub mod program;
pub mod proximal;
pub mod rounds;
pub mod scaling;
pub mod shrink;
pub mod softmax;
pub mod tally;
pub mod train;
