//! Targets for libFuzzer: what bytes of unknown peers and any order of events must not do to a path.
//!
//! In `native`: `cargo +nightly fuzz run -s none TARGET` (cargo-fuzz 0.13; there is no unsafe code
//! for a sanitizer to watch). Without libFuzzer, in this folder: `cargo test --no-default-features`
//! runs each target on made-up input and on what libFuzzer found. Each `run` panics when a rule is
//! broken; the rules stand in the files.

#![forbid(unsafe_code)]

pub mod bytes;
pub mod congestion_map;
pub mod core_pair;
pub mod header;
pub mod incoming;
pub mod mailboxes;
pub mod slots;
pub mod socket_memory;
pub mod stream_words;
#[path = "../../crates/stream_link/tests/support/mod.rs"]
mod streams;
pub mod verbs_engine;
