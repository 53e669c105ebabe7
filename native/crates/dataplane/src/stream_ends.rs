//! How streams end in order: with our FIN, and read to the peer's, so that no reset discards messages
//! that were acknowledged.
//!
//! A worker of a node that another one follows ends them so that nothing is lost towards a kernel
//! either, which counts as delivered what TCP has acknowledged. What was sent to it may lie unread
//! in its TCP and be dropped with the connection (up to 6.12); so a ping follows what was sent, and
//! its answer tells that RDS has handled all before it. What it sends is delivered up to its FIN.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use urds_path::AckMode;

use crate::path::StreamPath;
use crate::plane::Plane;
use crate::shutdown::DRAIN_POLL_NS;
use crate::state::{PathId, State};
use crate::stream::Stream;
use crate::sys::sockets;

/// How long an orderly close waits for the peer's end.
const END_OF_STREAM: Duration = Duration::from_millis(100);
/// How often the time for an answer is granted to a peer that sends all the while: the answer comes
/// behind what its sockets hold.
const LONGER: u64 = 5;

impl Plane {
    /// Close our direction, read the peer's to its end, close: nothing acknowledged is lost.
    ///
    /// What came in so far is acknowledged first, or its senders would get an error for it; later
    /// bytes are not, for no socket will read them. No thread is woken.
    ///
    /// With `flush_ns` another process goes on with the sockets: then what waits to be sent to a
    /// kernel stays for it, the kernel is asked to answer for what it was sent, and what it sends
    /// until it ends its direction is delivered. Each of both is waited for while something comes, and
    /// so long after it.
    pub fn end_streams(&self, flush_ns: u64) {
        let paths = self.lock().all_paths();
        let asked = self.ask_kernels(&paths, flush_ns);
        for &path in &paths {
            if let Some(record) = self.lock().paths.get_mut(path) {
                record.core.acknowledge();
            }
            self.flush(path);
        }
        self.deliver_to_ends(&asked, flush_ns);
        let mut streams: Vec<Arc<dyn Stream>> = Vec::new();
        for path in paths {
            if let Some(stream) = self.detach(path) {
                let _ = stream.shutdown(); // it may have ended by itself
                streams.push(stream);
            }
        }
        let deadline = Instant::now() + END_OF_STREAM;
        let mut bytes = vec![0; 65536];
        for stream in streams {
            read_to_end(&*stream, deadline, &mut bytes);
        }
    }

    /// Send kernels nothing new but a ping, and serve all streams until each has answered; return
    /// the paths that were asked.
    fn ask_kernels(&self, paths: &[PathId], flush_ns: u64) -> Vec<PathId> {
        if flush_ns == 0 {
            return Vec::new();
        }
        let asked: Vec<PathId> = {
            let mut state = self.lock();
            let paths = paths.iter().copied();
            paths.filter(|&path| state.ask_kernel(path)).collect()
        };
        self.serve_until(&asked, flush_ns, |record| record.core.is_answered());
        asked
    }

    /// End our direction of each stream and deliver what comes until the peers end theirs; of those
    /// that have not answered only what is here.
    fn deliver_to_ends(&self, paths: &[PathId], flush_ns: u64) {
        for &path in paths {
            let stream = {
                let mut state = self.lock();
                let stream = state.stream_of(path).map(|(stream, _)| stream);
                if let Some(record) = state.paths.get_mut(path) {
                    record.broken = true; // nothing more is written
                }
                stream
            };
            if let Some(stream) = stream {
                let _ = stream.shutdown(); // it may have ended by itself
            }
            self.resume(path); // a mailbox that paused it has room for what is under way
        }
        self.serve_until(paths, flush_ns, |record| !record.core.is_answered());
    }

    /// Serve all streams and sockets until each path is done or without a stream, or nothing came on
    /// them for `wait_ns`; but not longer than `LONGER` times that.
    fn serve_until(&self, paths: &[PathId], wait_ns: u64, is_done: fn(&StreamPath) -> bool) {
        let began_ns = self.now_ns();
        let (mut came_ns, mut before) = (began_ns, None);
        loop {
            for &path in paths {
                self.flush(path);
            }
            {
                let state = self.lock();
                let records = paths.iter().filter_map(|&path| state.paths.get(path));
                let mut waiting = records
                    .filter(|record| record.stream.is_some() && !is_done(record))
                    .peekable();
                if waiting.peek().is_none() {
                    return;
                }
                // All of a frame that has come counts: a long one takes a while.
                let come = waiting.map(|record| {
                    let receiver = &record.core.receiver;
                    (receiver.frames, receiver.remaining())
                });
                let come: Vec<_> = come.collect();
                if before.as_ref() != Some(&come) {
                    (came_ns, before) = (self.now_ns(), Some(come));
                }
            }
            let now_ns = self.now_ns();
            let is_late = now_ns - came_ns >= wait_ns || now_ns - began_ns >= LONGER * wait_ns;
            if self.is_virtual() || is_late {
                return;
            }
            self.serve_ready(Some(DRAIN_POLL_NS));
            self.serve_due();
        }
    }
}

impl State {
    /// Have a path to a kernel, or to a peer that may be one, end what it sends with a ping; return
    /// whether it has to be answered.
    fn ask_kernel(&mut self, id: PathId) -> bool {
        let Some(path) = self.paths.get_mut(id) else {
            return false;
        };
        let may_be_kernel = path.core.sender.ack_mode != AckMode::PeerAcknowledged;
        let Some(host) = self.hosts.get(path.host).filter(|_| may_be_kernel) else {
            return false;
        };
        // No socket takes the answer, which is an empty message to the port.
        let mut ports = (2..=u16::MAX).rev();
        let port = ports.find(|port| host.inboxes.get(port).is_none());
        port.is_some_and(|port| path.core.ask(port))
    }
}

fn read_to_end(stream: &dyn Stream, deadline: Instant, bytes: &mut [u8]) {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        if left_ms == 0 {
            return;
        }
        if stream.rest() && sockets::poll_for(stream.descriptor(), libc::POLLIN, left_ms) == 0 {
            return;
        }
        stream.hear();
        match stream.read(bytes, &mut []) {
            Ok(1..) => {}
            Err(failure) if stream.rings() && failure.kind() == ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}
