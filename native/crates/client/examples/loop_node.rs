//! A node that carries messages between the sockets of one host and knows nothing else, for tests of
//! programs in C: `loop_node PATH` prints `ready` and serves until its standard input ends.

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

static STOPPED: AtomicBool = AtomicBool::new(false);

fn main() {
    let path = std::env::args().nth(1).expect("a path to listen at");
    let listener = support::sys::listen(Path::new(&path));
    println!("ready");
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        STOPPED.store(true, Ordering::Relaxed);
    });
    let node = support::node::Node::new(listener, Path::new(&path), support::small());
    node.run(&STOPPED);
    let _ = std::fs::remove_file(&path);
}
