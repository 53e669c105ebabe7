//! The word of a waiter in every order of two threads; `cargo test --release` in this folder.
//!
//! The word is the data plane's own source; the lock, the futex and the kick around it are models.
//! A thread that would sleep for ever is a deadlock, which loom reports.

mod atomics {
    pub use loom::sync::atomic::{AtomicU32, Ordering};
}
#[path = "../../crates/dataplane/src/word.rs"]
#[allow(dead_code, clippy::new_without_default, clippy::missing_errors_doc)]
pub mod word;

#[cfg(test)]
mod models;
