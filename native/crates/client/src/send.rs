//! Sending from the caller's memory, and waiting for room.

use urds_channel::socket_memory::layout::{WAIT_ANY, WAIT_ROOM, WAIT_SLEEPERS};
use urds_channel::socket_memory::{Outgoing, Rejected, Word};

use crate::socket::{Socket, number_of};
use crate::sys;
use crate::sys::parts::Readable;

/// Room was told of so often and not found: it is in pieces.
const ROUNDS: u32 = 3;
const PAUSE_NS: u64 = 1_000_000;
/// How long a wait for a destination sleeps before it looks whether the node is there: the end of
/// the node wakes no thread that sleeps on a word of memory.
const LOOK_NS: u64 = 1_000_000_000;
/// Routes asked for in one call: they go while the node changes.
const ROUTES_ASKED: u32 = 8;

/// A call that is being made.
struct Sending<'a> {
    socket: &'a Socket,
    descriptor: i32,
    message: &'a Outgoing,
    length: usize,
    dontwait: bool,
    asked: u32,
    rounds: u32,
    /// Count of events before the node was told to count; the next reason sleeps on it.
    event: Option<u32>,
    until_ns: Option<u64>,
}

impl Socket {
    /// Send one message of the bytes in `parts`; return how many.
    ///
    /// # Errors
    /// ENOTCONN unbound, EOPNOTSUPP to the other family, EMSGSIZE, EAGAIN or ENOBUFS without room,
    /// ETIMEDOUT after `SO_SNDTIMEO`, EINTR, EIO without the node; as the node answers for a new peer.
    pub fn send(
        &self,
        descriptor: i32,
        place: &[u8],
        message: &Outgoing,
        parts: Readable<'_>,
        dontwait: bool,
    ) -> Result<usize, i32> {
        let ask = || self.ask_route(descriptor, place, &message.to, self.side.tos());
        self.send_asking(descriptor, message, parts, dontwait, ask)
    }

    /// As `send`; `ask` has to ask for the route of a new peer, and waits for the node whatever
    /// `dontwait` says.
    ///
    /// # Errors
    /// As `send`.
    pub fn send_asking(
        &self,
        descriptor: i32,
        message: &Outgoing,
        parts: Readable<'_>,
        dontwait: bool,
        mut ask: impl FnMut() -> Result<(), i32>,
    ) -> Result<usize, i32> {
        let length = parts.length();
        let local = self.local().ok_or(libc::ENOTCONN)?;
        if local.is_v4() != message.to.is_v4() {
            return Err(libc::EOPNOTSUPP);
        }
        self.side.check_length(length).map_err(number_of)?;
        let mut sending = Sending {
            socket: self,
            descriptor,
            message,
            length,
            dontwait,
            asked: 0,
            rounds: 0,
            event: None,
            until_ns: None,
        };
        loop {
            let is_congested =
                |slot, port| self.congestion.is_any() && self.congestion.is_congested(slot, port);
            let fill = |at| parts.copy_into(self.side.area(), at);
            match self.side.send(message, length, is_congested, fill) {
                Ok(published) => {
                    if published.is_full {
                        self.fill_control(descriptor, length);
                    }
                    let has_ended = (published.ring && Self::ring(descriptor).is_err())
                        || (published.must_look && sys::has_ended(descriptor));
                    if has_ended {
                        self.side.note_end();
                        return Err(libc::EIO);
                    }
                    return Ok(length);
                }
                Err(Rejected::NoRoute) if sending.asked < ROUTES_ASKED => {
                    sending.asked += 1;
                    self.options().set(Word::HasRoute, 1);
                    ask()?;
                }
                Err(reason) => sending.wait(reason)?,
            }
        }
    }
}

impl Sending<'_> {
    /// Do what a reason asks for before the next try.
    #[cold]
    fn wait(&mut self, reason: Rejected) -> Result<(), i32> {
        match reason {
            Rejected::Full => self.wait_for_room(),
            Rejected::Congested => self.wait_for_destination(0),
            Rejected::FullBesideOthers => self.wait_for_destination(WAIT_ROOM),
            other => Err(number_of(other)),
        }
    }

    fn wait_for_room(&mut self) -> Result<(), i32> {
        let event = self.socket.side.room_event();
        self.socket.fill_control(self.descriptor, self.length);
        if self.dontwait {
            return Err(Socket::without_room(self.descriptor, libc::EAGAIN));
        }
        self.rounds += 1;
        Socket::wait_writable(self.descriptor)?;
        if self.rounds > ROUNDS {
            let slept = self.socket.side.sleep_for_room(event, Some(PAUSE_NS));
            if slept.is_err_and(|failure| failure.0 == libc::EINTR) {
                return Err(libc::EINTR);
            }
        }
        Ok(())
    }

    fn wait_for_destination(&mut self, flags: u32) -> Result<(), i32> {
        let side = &self.socket.side;
        if self.dontwait || sys::is_nonblocking(self.descriptor) {
            return self.note_destination(flags);
        }
        let Some(event) = self.event.take() else {
            self.event = Some(side.room_event());
            side.wait_for(0, WAIT_SLEEPERS | flags);
            return Ok(()); // look again, then sleep
        };
        let left_ns = self.time_left()?;
        let look_ns = left_ns.map_or(LOOK_NS, |left| left.min(LOOK_NS));
        let Err(failure) = side.sleep_for_room(event, Some(look_ns)) else {
            return Ok(());
        };
        match failure.0 {
            libc::ETIMEDOUT if sys::has_ended(self.descriptor) => Err(libc::EIO),
            libc::ETIMEDOUT if left_ns != Some(look_ns) => Ok(()), // look again
            number => Err(number),
        }
    }

    /// Have the node tell of the destination, then look once more.
    fn note_destination(&mut self, flags: u32) -> Result<(), i32> {
        if self.event.take().is_some() {
            return Err(Socket::without_room(self.descriptor, libc::ENOBUFS));
        }
        let options = self.socket.options();
        let group = 1u64 << (self.message.to.port % 64);
        let is_monitored = options.get(Word::Monitor) != 0 && options.mask() & group != 0;
        let (groups, any) = if is_monitored {
            (group, 0)
        } else {
            (0, WAIT_ANY)
        };
        self.event = Some(self.socket.side.room_event());
        self.socket.side.wait_for(groups, flags | any);
        Ok(())
    }

    /// Return how long to sleep, by `SO_SNDTIMEO`; Linux does not apply it here.
    fn time_left(&mut self) -> Result<Option<u64>, i32> {
        if self.socket.side.is_strict() {
            return Ok(None);
        }
        if self.until_ns.is_none() {
            let Some(ns) = sys::send_timeout_ns(self.descriptor) else {
                return Ok(None);
            };
            self.until_ns = Some(sys::monotonic_ns().saturating_add(ns));
        }
        let until_ns = self.until_ns.unwrap_or(u64::MAX);
        match until_ns.saturating_sub(sys::monotonic_ns()) {
            0 => Err(libc::ETIMEDOUT),
            left => Ok(Some(left)),
        }
    }
}
