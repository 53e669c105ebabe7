//! Addresses between Python and the plane: destinations of sends, sources of messages.
//!
//! Both are cached per mailbox, because parsing a literal and making a tuple with its text each
//! take as long as a message. Keys are compared by value, so an entry never goes stale; the same
//! tuple object again needs no comparison. Only plain tuples of plain strings and integers are
//! cached; all else is parsed by `urds.rds.addresses`, which has every rule.

use std::net::{IpAddr, Ipv6Addr};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};
use urds_path::{Address, SocketAddress};

use crate::sys;

const CACHE_FIRST: usize = 16;
const CACHE_MAX: usize = 4096;
/// Tuple objects that are known by themselves.
const TUPLES: usize = 16;

/// A program's address, in a form that can be compared.
#[derive(Clone, Copy)]
struct Given<'a, 'py> {
    host: Borrowed<'a, 'py, PyString>,
    port: u16,
    /// Of a tuple of four; -1 for one of two.
    scope: i64,
    hash: usize,
}

impl<'a, 'py> Given<'a, 'py> {
    /// Split a plain tuple; `None` for anything else.
    fn of(address: Borrowed<'a, 'py, PyAny>) -> Option<Self> {
        let tuple = address.cast_exact::<PyTuple>().ok()?;
        let scope = match tuple.len() {
            2 => -1,
            4 => {
                small_integer(sys::member(tuple, 2)?)?;
                small_integer(sys::member(tuple, 3)?)?
            }
            _ => return None,
        };
        let host = sys::member(tuple, 0)?.cast_exact::<PyString>().ok()?;
        let port = u16::try_from(small_integer(sys::member(tuple, 1)?)?).ok()?;
        let hash = hash_of(host, port);
        Some(Self {
            host,
            port,
            scope,
            hash,
        })
    }

    fn is(&self, entry: &Target) -> bool {
        self.port == entry.port
            && self.scope == entry.scope
            && (self.host.as_ptr() == entry.host.as_ptr()
                || sys::same_text(self.host, entry.host.bind_borrowed(self.host.py())))
    }
}

/// Return the place of an object by its address; objects lie 16 bytes apart at least.
fn place_of_tuple(object: Borrowed<'_, '_, PyAny>) -> usize {
    (object.as_ptr().addr() >> 4) % TUPLES
}

fn hash_of(host: Borrowed<'_, '_, PyString>, port: u16) -> usize {
    sys::hash_of(host) ^ usize::from(port).wrapping_mul(0x9E37_79B9)
}

fn small_integer(value: Borrowed<'_, '_, PyAny>) -> Option<i64> {
    value.cast_exact::<PyInt>().ok()?;
    let value = sys::integer(value).ok()?;
    (0..=i64::from(u32::MAX)).contains(&value).then_some(value)
}

struct Target {
    host: Py<PyString>,
    port: u16,
    scope: i64,
    address: SocketAddress,
}

/// Destinations that were parsed before. A table with one place per key, grown on collisions.
#[derive(Default)]
pub struct Targets {
    places: Vec<Option<Target>>,
    /// The tuple objects of these that were given last. They are kept, so no other object has their
    /// address, and nothing in them can change.
    tuples: [Option<(Py<PyTuple>, SocketAddress)>; TUPLES],
}

impl Targets {
    /// Return the destination of a plain tuple, if it was kept.
    #[inline]
    pub fn find(&mut self, address: Borrowed<'_, '_, PyAny>) -> Option<&SocketAddress> {
        let place = place_of_tuple(address);
        let last = self.tuples[place].as_ref();
        if last.is_none_or(|(tuple, _)| tuple.as_ptr() != address.as_ptr()) {
            self.find_text(address)?;
        }
        self.tuples[place].as_ref().map(|(_, target)| target)
    }

    /// Look for what the tuple says, and keep the tuple at its place.
    fn find_text(&mut self, address: Borrowed<'_, '_, PyAny>) -> Option<()> {
        let given = Given::of(address)?;
        let place = self
            .places
            .get(given.hash & self.places.len().wrapping_sub(1))?;
        let target = place.as_ref().filter(|target| given.is(target))?.address;
        let tuple = address.cast_exact::<PyTuple>().ok()?.to_owned().unbind();
        // What it replaces is a tuple of strings and integers: its end runs no code of Python.
        self.tuples[place_of_tuple(address)] = Some((tuple, target));
        Some(())
    }

    /// Keep the destination of a tuple; the replaced entry is returned to be dropped.
    pub fn keep(&mut self, given: Borrowed<'_, '_, PyAny>, address: SocketAddress) -> Replaced {
        let Some(given) = Given::of(given) else {
            return Replaced::default();
        };
        let py = given.host.py();
        let mut replaced = Vec::new();
        if self.places.is_empty() {
            self.places.resize_with(CACHE_FIRST, || None);
        } else if self.places[given.hash & (self.places.len() - 1)].is_some()
            && self.places.len() < CACHE_MAX
        {
            let old = std::mem::take(&mut self.places);
            self.places.resize_with(old.len() * 4, || None);
            for target in old.into_iter().flatten() {
                let place = self.place_of(py, &target);
                replaced.extend(self.places[place].replace(target));
            }
        }
        let host = given.host.to_owned().unbind();
        let target = Target {
            host,
            port: given.port,
            scope: given.scope,
            address,
        };
        let place = given.hash & (self.places.len() - 1);
        replaced.extend(self.places[place].replace(target));
        Replaced { _targets: replaced }
    }

    fn place_of(&self, py: Python<'_>, target: &Target) -> usize {
        hash_of(target.host.bind_borrowed(py), target.port) & (self.places.len() - 1)
    }
}

/// Entries that left a cache; dropped outside its lock.
#[derive(Default)]
pub struct Replaced {
    _targets: Vec<Target>,
}

/// Ready tuples for the sources of messages. A table with one place per key.
#[derive(Default)]
pub struct Sources {
    places: Vec<Option<(SocketAddress, Py<PyTuple>)>>,
}

impl Sources {
    /// Return the tuple for a source, if it was kept.
    pub fn find<'py>(
        &self,
        py: Python<'py>,
        source: &SocketAddress,
    ) -> Option<Bound<'py, PyTuple>> {
        let place = self.places.get(place_of(source, self.places.len()))?;
        let (known, tuple) = place.as_ref()?;
        (known == source).then(|| tuple.bind(py).clone())
    }

    /// Keep a tuple; the replaced one is returned to be dropped.
    pub fn keep(&mut self, source: SocketAddress, tuple: Py<PyTuple>) -> Vec<Py<PyTuple>> {
        let mut replaced = Vec::new();
        if self.places.is_empty() {
            self.places.resize_with(CACHE_FIRST, || None);
        } else if self.places.len() < CACHE_MAX
            && self.places[place_of(&source, self.places.len())].is_some()
        {
            let old = std::mem::take(&mut self.places);
            self.places.resize_with(old.len() * 4, || None);
            for (known, tuple) in old.into_iter().flatten() {
                replaced.extend(self.put(known, tuple));
            }
        }
        replaced.extend(self.put(source, tuple));
        replaced
    }

    fn put(&mut self, source: SocketAddress, tuple: Py<PyTuple>) -> Option<Py<PyTuple>> {
        let place = place_of(&source, self.places.len());
        self.places[place]
            .replace((source, tuple))
            .map(|(_, tuple)| tuple)
    }
}

#[allow(clippy::cast_possible_truncation)] // a hash
fn place_of(source: &SocketAddress, places: usize) -> usize {
    let host = match source.address.ip() {
        IpAddr::V4(ip) => u64::from(u32::from(ip)),
        IpAddr::V6(ip) => {
            let bytes = u128::from(ip);
            (bytes >> 64) as u64 ^ bytes as u64
        }
    };
    let hash = (host ^ u64::from(source.port) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (hash >> 32) as usize & places.wrapping_sub(1)
}

/// Return the tuple that Python's socket module uses for an address and a port.
pub fn source_tuple<'py>(py: Python<'py>, source: &SocketAddress) -> PyResult<Bound<'py, PyTuple>> {
    let host = source.address.ip().to_string();
    match source.address.ip() {
        IpAddr::V4(_) => (host, source.port).into_pyobject(py),
        IpAddr::V6(ip) => (text_of(ip), source.port, 0, source.address.scope).into_pyobject(py),
    }
}

/// Write an IPv6 address as `ipaddress` does: no dotted quad for embedded IPv4.
fn text_of(ip: Ipv6Addr) -> String {
    match ip.to_ipv4_mapped() {
        // The plane converts these to IPv4, so none comes here; the text is that of Python 3.11.
        Some(_) => {
            let words = ip.segments();
            format!("::ffff:{:x}:{:x}", words[6], words[7])
        }
        None => ip.to_string(),
    }
}

/// Return the address of packed bytes. Raises `ValueError` unless there are 4 or 16.
pub fn unpack(packed: &[u8], scope: u32) -> PyResult<Address> {
    let ip = if let Ok(bytes) = <[u8; 4]>::try_from(packed) {
        IpAddr::from(bytes)
    } else if let Ok(bytes) = <[u8; 16]>::try_from(packed) {
        IpAddr::from(bytes)
    } else {
        return Err(PyValueError::new_err(format!(
            "address of {} bytes",
            packed.len()
        )));
    };
    Ok(Address::scoped(ip, scope))
}

/// Return the packed bytes of an address, without its scope.
pub fn pack<'py>(py: Python<'py>, address: &Address) -> Bound<'py, PyBytes> {
    match address.ip() {
        IpAddr::V4(ip) => PyBytes::new(py, &ip.octets()),
        IpAddr::V6(ip) => PyBytes::new(py, &ip.octets()),
    }
}

static PARSE_TARGET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static IP_ADDRESS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Parse a destination with `urds.rds.addresses.parse_target`, which raises its errors.
#[cold]
pub fn parse_target(given: Borrowed<'_, '_, PyAny>, local: &Address) -> PyResult<SocketAddress> {
    let py = given.py();
    // A tuple, for the call with one argument is no function of the interpreter: see `sys::exit`.
    let local = PyTuple::new(py, [local.to_string()])?;
    let local = IP_ADDRESS
        .import(py, "ipaddress", "ip_address")?
        .call1(local)?;
    let parse = PARSE_TARGET.import(py, "urds.rds.addresses", "parse_target")?;
    let (address, port): (Bound<'_, PyAny>, u16) = parse.call1((given, local))?.extract()?;
    let packed = address.getattr("packed")?;
    let scope = match address.getattr("scope_id") {
        Ok(scope) if !scope.is_none() => scope.extract::<String>()?.parse().unwrap_or(0),
        _ => 0,
    };
    Ok(SocketAddress::new(
        unpack(packed.cast::<PyBytes>()?.as_bytes(), scope)?,
        port,
    ))
}

/// Return whether a destination's host is a literal, which always means the same.
pub fn is_literal(given: Borrowed<'_, '_, PyAny>) -> bool {
    Given::of(given).is_some_and(|given| {
        let host = given.host.to_owned();
        let text = host.to_str().unwrap_or_default();
        text.split('%')
            .next()
            .is_some_and(|plain| plain.parse::<IpAddr>().is_ok())
    })
}
