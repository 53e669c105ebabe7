//! A socket of a client: its memory, mapped, and the node's congestion memory.

use urds_channel::congestion::CongestionMemory;
use urds_channel::socket_memory::layout::PLACE_BYTES_MAX;
use urds_channel::socket_memory::{ClientSide, Name, Options, Rejected, Word};
use urds_channel::sys::area::Area;

use crate::request::{self, Descriptors, FIELDS_AT, Operation, Record};
use crate::sys::Owned;

/// How many words of options there are.
const WORDS: usize = Word::HasRoute as usize + 1;

/// `SO_RDS_TRANSPORT` was not set.
pub const TRANSPORT_NONE: u32 = u32::MAX;

/// A socket of a node. Every call may be made by any thread, with any descriptor of the socket.
///
/// Dropping it unmaps its memory and closes no descriptor.
#[derive(Debug)]
pub struct Socket {
    pub(crate) side: ClientSide,
    pub(crate) congestion: CongestionMemory,
}

impl Socket {
    /// Make a socket at the node of a path; the descriptor is the caller's, and closes with exec
    /// unless the caller changes that. `flags` is 0 or `SOCK_NONBLOCK`.
    ///
    /// # Errors
    /// As the node answers; ENOENT or ECONNREFUSED without a node; EPROTO if it gives memory of
    /// another version; of the system.
    pub fn open(place: &[u8], flags: u32) -> Result<(i32, Self), i32> {
        let asked = Record::new(Operation::Open).with(&flags.to_le_bytes());
        let (_, descriptors) = request::call(place, &asked, Operation::Open, None)?;
        Self::made(descriptors)
    }

    fn made([user_end, memory, congestion]: Descriptors) -> Result<(i32, Self), i32> {
        let user_end = user_end.ok_or(libc::EPROTO)?;
        let made = Self::map(memory, congestion)?;
        Ok((user_end.release(), made))
    }

    /// Make a socket that is bound to a name, whose port may be 0, with these words of options; see
    /// `open` and `bind`.
    ///
    /// A node that does not know the request is asked for a socket first, and then to bind it.
    ///
    /// # Errors
    /// As `open` and `bind`.
    pub fn open_bound(
        place: &[u8],
        flags: u32,
        name: &Name,
        transport: u32,
        words: &[(Word, u32)],
    ) -> Result<(i32, Self), i32> {
        let asked = Self::asked_bound(flags, name, transport, words);
        match request::call(place, &asked, Operation::OpenAndBind, None) {
            Ok((_, descriptors)) => Self::made(descriptors),
            Err(libc::ENOSYS) => {
                let (descriptor, made) = Self::open(place, flags)?;
                let user_end = Owned(descriptor);
                for &(word, value) in words {
                    made.options().set(word, value);
                }
                made.bind(user_end.0, place, name, transport)?;
                Ok((user_end.release(), made))
            }
            Err(number) => Err(number),
        }
    }

    /// Return the request for a socket that is bound; a word that is not given is 0.
    pub(crate) fn asked_bound(
        flags: u32,
        name: &Name,
        transport: u32,
        words: &[(Word, u32)],
    ) -> Record {
        let mut bytes = [0; WORDS * 4];
        for &(word, value) in words {
            let at = word as usize * 4;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        Record::new(Operation::OpenAndBind)
            .with(&flags.to_le_bytes())
            .with(&name.bytes())
            .with(&transport.to_le_bytes())
            .with(&length.to_le_bytes())
            .with(&bytes)
    }

    /// Return the socket that a descriptor is one of.
    ///
    /// # Errors
    /// ENOTSOCK if it is none of the node at that path; as `open`.
    pub fn find(place: &[u8], descriptor: i32) -> Result<Self, i32> {
        let asked = Record::new(Operation::Find);
        let found = request::call(place, &asked, Operation::Find, Some(descriptor))?;
        let (_, [memory, congestion, _]) = found;
        Self::map(memory, congestion)
    }

    fn map(memory: Option<Owned>, congestion: Option<Owned>) -> Result<Self, i32> {
        let memory = memory.ok_or(libc::EPROTO)?;
        let congestion = congestion.ok_or(libc::EPROTO)?;
        Self::attach(memory.0, congestion.0).map_err(|number| match number {
            // What a node gives is of another format then: the call's own EINVAL means others.
            libc::EINVAL => libc::EPROTO,
            number => number,
        })
    }

    /// Map a socket's memory and the congestion memory of its node, whose descriptors may be closed
    /// after that.
    ///
    /// # Errors
    /// EINVAL for what is no such memory, EPROTO for another version; of the system.
    pub fn attach(memory: i32, congestion: i32) -> Result<Self, i32> {
        let area = Area::map(memory).map_err(|failure| failure.0)?;
        let side = ClientSide::new(area).map_err(|failure| failure.0)?;
        let congestion = CongestionMemory::map(congestion).map_err(|failure| failure.0)?;
        Ok(Self { side, congestion })
    }

    /// Return `SO_COOKIE` of the socket's descriptors.
    pub fn cookie(&self) -> u64 {
        self.side.cookie()
    }

    /// Return the name that the socket is bound to.
    pub fn local(&self) -> Option<Name> {
        self.side.local()
    }

    /// Return the name that it is connected to.
    pub fn peer(&self) -> Option<Name> {
        self.side.peer()
    }

    /// Set or take away the connected name; nothing is sent.
    ///
    /// # Errors
    /// EAGAIN in a signal handler that interrupted a send of its own thread.
    pub fn set_peer(&self, peer: Option<Name>) -> Result<(), i32> {
        self.side.set_peer(peer).map_err(number_of)
    }

    /// Return its options: words that all processes with this socket share.
    pub fn options(&self) -> Options<'_> {
        self.side.options()
    }

    /// Return the memory's own view, for what has no call here.
    pub fn side(&self) -> &ClientSide {
        &self.side
    }

    /// Bind it to a name, whose port may be 0; return the name with its port.
    ///
    /// # Errors
    /// As the node answers: EADDRINUSE, EADDRNOTAVAIL, EACCES, EINVAL; EIO after its end; as `open`.
    pub fn bind(
        &self,
        descriptor: i32,
        place: &[u8],
        name: &Name,
        transport: u32,
    ) -> Result<Name, i32> {
        let asked = Record::new(Operation::Bind)
            .with(&name.bytes())
            .with(&transport.to_le_bytes());
        let was_bound = self.local().is_some();
        match self.call(place, &asked, Operation::Bind, descriptor) {
            Ok((answer, _)) => Ok(Name::from_bytes(&answer.name(FIELDS_AT))),
            // The worker that bound it died before it could say so.
            Err(libc::EINVAL) if !was_bound => self.local().ok_or(libc::EINVAL),
            Err(number) => Err(number),
        }
    }

    /// Ask for the route of a peer, and remember it.
    ///
    /// # Errors
    /// As the node answers: EACCES, EUSERS, EOPNOTSUPP, ENOTCONN; EAGAIN as `set_peer`; as `open`.
    pub fn ask_route(&self, descriptor: i32, place: &[u8], to: &Name, tos: u8) -> Result<(), i32> {
        let asked = Record::new(Operation::Route).with(&to.bytes()).with(&[tos]);
        let (answer, _) = self.call(place, &asked, Operation::Route, descriptor)?;
        let (route, generation) = (answer.word(FIELDS_AT), answer.word(FIELDS_AT + 4));
        self.side
            .set_route(to, tos, route, generation)
            .map_err(number_of)
    }

    /// Take back what was sent to a name and not acknowledged; to all with None. Return how many
    /// messages.
    ///
    /// # Errors
    /// As the node answers; as `open`.
    pub fn cancel(&self, descriptor: i32, place: &[u8], to: Option<&Name>) -> Result<u32, i32> {
        let bytes = to.map_or([0; 24], Name::bytes);
        let asked = Record::new(Operation::Cancel).with(&bytes);
        let (answer, _) = self.call(place, &asked, Operation::Cancel, descriptor)?;
        Ok(answer.word(FIELDS_AT))
    }

    /// Set an option at the node; the value has at most 128 bytes.
    ///
    /// # Errors
    /// EINVAL for a longer one; as the node answers; as `open`.
    pub fn set_option(
        &self,
        descriptor: i32,
        place: &[u8],
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<(), i32> {
        if value.len() > 128 {
            return Err(libc::EINVAL);
        }
        let length = u32::try_from(value.len()).unwrap_or(0);
        let asked = Record::new(Operation::SetOption)
            .with(&level.to_le_bytes())
            .with(&name.to_le_bytes())
            .with(&length.to_le_bytes())
            .with(value);
        self.call(place, &asked, Operation::SetOption, descriptor)?;
        Ok(())
    }

    /// Ask the node of this socket, with one of its descriptors; `place` counts only if the memory
    /// names no path.
    fn call(
        &self,
        place: &[u8],
        asked: &Record,
        operation: Operation,
        descriptor: i32,
    ) -> Result<(Record, Descriptors), i32> {
        let mut path = [0; PLACE_BYTES_MAX];
        let own = self.side.place(&mut path);
        let path = if own > 0 { &path[..own] } else { place };
        let called = request::call(path, asked, operation, Some(descriptor));
        called.map_err(|number| match number {
            // The node of this socket has ended; another one at its place knows no such socket.
            libc::ENOENT | libc::ECONNREFUSED | libc::ENOTSOCK => libc::EIO,
            number => number,
        })
    }
}

/// Return the number for a reason that no thread waits for.
pub(crate) fn number_of(reason: Rejected) -> i32 {
    match reason {
        Rejected::Busy | Rejected::Full | Rejected::Empty => libc::EAGAIN,
        Rejected::FullBesideOthers | Rejected::Congested | Rejected::OverQuota => libc::ENOBUFS,
        Rejected::TooLong => libc::EMSGSIZE,
        Rejected::NoRoute => libc::EHOSTUNREACH,
        Rejected::Failed(number) => number,
        Rejected::Corrupt => libc::EIO,
    }
}
