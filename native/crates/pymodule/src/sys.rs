//! Parts of the interpreter's C interface that pyo3 lacks: the only unsafe code of this crate.
//!
//! Bytes of objects that outlive a call, `bytes` that are filled before Python sees them, and
//! methods with their arguments on the interpreter's stack.

mod exit;

use std::cell::{Cell, UnsafeCell};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::raw::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::AtomicU8;

use pyo3::PyClass;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple, PyType};

/// The bytes of a `bytes` object, kept alive by it.
///
/// `into_object` gives the object back; otherwise dropping this leaks it: the wrappers in `memory`
/// defer its release.
pub struct BytesBytes {
    object: Py<PyBytes>,
    first: NonNull<u8>,
    length: usize,
}

// SAFETY: the bytes of a `bytes` object never move while it lives, and only the one owner of a
// `NewBytes` changes them; the object itself is only used with the interpreter held.
unsafe impl Send for BytesBytes {}
// SAFETY: as above; shared access reads only.
unsafe impl Sync for BytesBytes {}

impl BytesBytes {
    /// Keep a Python object alive for its bytes.
    pub fn of(object: &Bound<'_, PyBytes>) -> Self {
        let bytes = object.as_bytes();
        let first = NonNull::from(bytes).cast();
        Self {
            object: object.clone().unbind(),
            first,
            length: bytes.len(),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `object` owns so many bytes there and lives as long as we do.
        unsafe { slice::from_raw_parts(self.first.as_ptr(), self.length) }
    }

    pub fn into_object(self) -> Py<PyBytes> {
        self.object
    }
}

/// A `bytes` object that no other code has seen yet, so that its bytes may be written.
pub struct NewBytes(BytesBytes);

impl NewBytes {
    /// Allocate memory for this many bytes, at least two, all to be written.
    ///
    /// It is not cleared: to clear 64 KiB takes as long as to receive a quarter of them. The caller
    /// counts what it fills, and passes on only the whole.
    pub fn to_be_filled(py: Python<'_>, length: usize) -> PyResult<Self> {
        // Shorter ones may be shared by all code. The bytes come from C's allocator, of which the
        // compiler knows nothing: each has some value, so that they can be borrowed.
        let object = new_bytes(py, length.max(2))?;
        // SAFETY: it is a `bytes` object. The pointer is fetched anew: one from a shared borrow
        // must not be written through.
        let first = unsafe { ffi::PyBytes_AsString(object.as_ptr()) };
        let first = NonNull::new(first.cast()).ok_or_else(|| PyErr::fetch(py))?;
        Ok(Self(BytesBytes {
            first,
            length: object.as_bytes().len(),
            object: object.unbind(),
        }))
    }

    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: no other code has the object before `into_object`, which consumes us.
        unsafe { slice::from_raw_parts_mut(self.0.first.as_ptr(), self.0.length) }
    }

    pub fn into_object(self) -> Py<PyBytes> {
        self.0.into_object()
    }
}

/// Return the bytes of a `bytes` object; they live as long as it does.
#[inline]
pub fn bytes_in<'a>(object: Borrowed<'a, '_, PyBytes>) -> &'a [u8] {
    let (mut first, mut length) = (ptr::null_mut(), 0);
    // SAFETY: of a `bytes` object the call cannot fail and tells where so many bytes are.
    unsafe {
        ffi::PyBytes_AsStringAndSize(object.as_ptr(), &raw mut first, &raw mut length);
        slice::from_raw_parts(first.cast(), length.unsigned_abs())
    }
}

/// Copy bytes into a `bytes` object; `None` without memory for it.
#[inline]
pub fn copied_bytes<'py>(py: Python<'py>, bytes: &[u8]) -> Option<Bound<'py, PyBytes>> {
    let length = bytes.len().cast_signed(); // no slice is longer
    // SAFETY: so many bytes can be read there; null comes with an error.
    unsafe {
        let object = ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), length);
        match Bound::from_owned_ptr_or_opt(py, object) {
            Some(object) => Some(object.cast_into_unchecked()),
            None => no_memory(py),
        }
    }
}

/// Take the error of an allocation off the interpreter: the caller raises one later.
#[cold]
fn no_memory<T>(py: Python<'_>) -> Option<T> {
    drop(PyErr::take(py));
    None
}

/// Copy bytes into a `bytes` object.
pub fn bytes_of<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    copied_bytes(py, bytes).ok_or_else(|| PyMemoryError::new_err(()))
}

fn new_bytes(py: Python<'_>, length: usize) -> PyResult<Bound<'_, PyBytes>> {
    let length = ffi::Py_ssize_t::try_from(length)
        .map_err(|_| PyMemoryError::new_err("more bytes than memory"))?;
    // SAFETY: a null pointer asks for an object with undefined bytes; null comes with an error.
    unsafe {
        let object = ffi::PyBytes_FromStringAndSize(ptr::null(), length);
        Ok(Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked())
    }
}

/// The bytes that an object exports: a `bytearray`, a `memoryview`, anything else.
pub struct Export(Box<ffi::Py_buffer>);

// SAFETY: the bytes stay where they are until `release`; the rest is touched only there.
unsafe impl Send for Export {}
// SAFETY: as above; shared access reads only.
unsafe impl Sync for Export {}

impl Export {
    /// Ask an object for its bytes. Raises `TypeError` if it has none.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
        // SAFETY: the view is ours to be filled, and is so if the result is 0.
        unsafe {
            let flags = ffi::PyBUF_FULL_RO;
            if ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) != 0 {
                return Err(PyErr::fetch(object.py()));
            }
            Ok(Self(Box::from_raw(Box::into_raw(view).cast())))
        }
    }

    pub fn length(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(0)
    }

    /// Return whether the bytes lie in one piece, in order.
    pub fn is_contiguous(&self) -> bool {
        // SAFETY: the view is filled.
        unsafe { ffi::PyBuffer_IsContiguous(&raw const *self.0, order()) != 0 }
    }

    /// Return the bytes; of a view in one piece only.
    pub fn bytes(&self) -> &[u8] {
        if self.0.len == 0 {
            return &[];
        }
        // SAFETY: a contiguous export has `len` bytes from `buf` on until it is released.
        unsafe { slice::from_raw_parts(self.0.buf.cast(), self.length()) }
    }

    pub fn is_readonly(&self) -> bool {
        self.0.readonly != 0
    }

    /// Copy bytes out, which other code may write meanwhile; of an export in one piece only.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= self.length(), "a range outside an export");
        // SAFETY: a contiguous export has `len` bytes from `buf` on until it is released, and the
        // range lies inside; no reference to them is made.
        unsafe {
            let from = self.0.buf.cast::<u8>().add(at);
            ptr::copy(from, to.as_mut_ptr(), to.len());
        }
    }

    /// Copy bytes to memory that other processes write meanwhile; of an export in one piece only.
    pub fn copy_to(&self, at: usize, to: &[AtomicU8]) {
        assert!(at + to.len() <= self.length(), "a range outside an export");
        // SAFETY: as above; atomic bytes may be written through a shared reference, and a thread
        // that reads them meanwhile gets some of both. `copy` allows that the export is the same memory.
        unsafe {
            let from = self.0.buf.cast::<u8>().add(at);
            ptr::copy(from, to.as_ptr().cast_mut().cast(), to.len());
        }
    }

    /// Copy bytes in; of an export in one piece that may be written.
    pub fn copy_in(&self, at: usize, from: &[u8]) {
        let fits = at + from.len() <= self.length() && !self.is_readonly();
        assert!(fits, "a range outside an export, or of one that is read");
        // SAFETY: as above, and the exporter lets it be written.
        unsafe {
            let to = self.0.buf.cast::<u8>().add(at);
            ptr::copy(from.as_ptr(), to, from.len());
        }
    }

    /// Copy bytes of another export in, both in one piece; this one may be written.
    pub fn copy_from(&self, at: usize, from: &Self, from_at: usize, length: usize) {
        let fits = at + length <= self.length() && from_at + length <= from.length();
        assert!(
            fits && !self.is_readonly(),
            "a range outside an export, or of one that is read"
        );
        // SAFETY: as above, for both; `copy` allows that they are the same.
        unsafe {
            let to = self.0.buf.cast::<u8>().add(at);
            ptr::copy(from.0.buf.cast::<u8>().add(from_at), to, length);
        }
    }

    /// Copy bytes that are not contiguous.
    pub fn gather(&mut self, py: Python<'_>) -> PyResult<Vec<u8>> {
        let mut bytes = vec![0; self.length()];
        // SAFETY: the view is filled, and there is room for its `len` bytes.
        let failed = unsafe {
            let target = bytes.as_mut_ptr().cast();
            ffi::PyBuffer_ToContiguous(target, &raw mut *self.0, self.0.len, order()) != 0
        };
        if failed {
            Err(PyErr::fetch(py))
        } else {
            Ok(bytes)
        }
    }

    /// Release the export; may run code of the exporter.
    pub fn release(mut self, _py: Python<'_>) {
        // SAFETY: the view is filled and released once, for `self` ends here.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// Copy all bytes that an object exports; return how many, `None` if they do not fit, or are not in one
/// piece. Raises `TypeError` if it has none.
pub fn copy_short(object: &Bound<'_, PyAny>, room: &mut [u8]) -> PyResult<Option<usize>> {
    let mut view = MaybeUninit::<ffi::Py_buffer>::zeroed();
    // SAFETY: the view is filled if the result is 0, and stays where it is until it is released, once;
    // one in one piece has `len` bytes from `buf` on until then.
    unsafe {
        if ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), ffi::PyBUF_FULL_RO) != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        let filled = view.assume_init_mut();
        let length = usize::try_from(filled.len).unwrap_or(usize::MAX);
        let fits = length <= room.len() && ffi::PyBuffer_IsContiguous(filled, order()) != 0;
        if fits && length > 0 {
            ptr::copy_nonoverlapping(filled.buf.cast(), room.as_mut_ptr(), length);
        }
        ffi::PyBuffer_Release(filled);
        Ok(fits.then_some(length))
    }
}

#[allow(clippy::cast_possible_wrap)] // ASCII
const fn order() -> std::os::raw::c_char {
    b'C' as std::os::raw::c_char
}

/// Arguments of a fast call, on the interpreter's stack.
pub type Arguments<'a, 'py> = &'a [Borrowed<'a, 'py, PyAny>];

/// Body of a fast method: its object, its arguments; a result or an exception.
pub type FastBody<T> =
    for<'a, 'py> fn(&'a Bound<'py, T>, Arguments<'a, 'py>) -> PyResult<Bound<'py, PyAny>>;

/// Turns a panic into an exception.
pub type Rescue<T> = fn(&Bound<'_, T>) -> PyErr;

/// Run a fast method's body; the interpreter's own convention on both sides.
///
/// # Safety
/// Called by the interpreter for a method made by `add_fast_method` only: `object` is of class `T`,
/// `arguments` points to `count` objects, and the interpreter is held.
pub unsafe fn call_fast<T: PyClass>(
    object: *mut ffi::PyObject,
    arguments: *mut *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    body: FastBody<T>,
    rescue: Rescue<T>,
) -> *mut ffi::PyObject {
    // SAFETY: see above; a `Borrowed` is a pointer that is not null.
    let (object, arguments) = unsafe {
        let py = Python::assume_attached();
        let object = Borrowed::from_ptr(py, object).cast_unchecked::<T>();
        let arguments: Arguments<'_, '_> = if count == 0 {
            &[]
        } else {
            slice::from_raw_parts(arguments.cast(), count.unsigned_abs())
        };
        (object, arguments)
    };
    // Turned into a pointer inside: a result is written to memory piece by piece, and read in one.
    let called = catch_unwind(AssertUnwindSafe(|| match body(&object, arguments) {
        Ok(value) => value.into_ptr(),
        Err(error) => raise(object.py(), error),
    }));
    called.unwrap_or_else(|_| raise(object.py(), rescue(&object)))
}

/// Set an exception; return the pointer that tells the interpreter so.
#[cold]
fn raise(py: Python<'_>, error: PyErr) -> *mut ffi::PyObject {
    error.restore(py);
    ptr::null_mut()
}

/// Make the function that the interpreter calls for a fast method of a class.
macro_rules! fast_function {
    ($class:ty, $body:path, $rescue:path) => {{
        unsafe extern "C" fn function(
            object: *mut pyo3::ffi::PyObject,
            arguments: *mut *mut pyo3::ffi::PyObject,
            count: pyo3::ffi::Py_ssize_t,
        ) -> *mut pyo3::ffi::PyObject {
            // SAFETY: the interpreter calls it as `add_fast_method` specifies.
            unsafe { $crate::sys::call_fast::<$class>(object, arguments, count, $body, $rescue) }
        }
        function
    }};
}
pub(crate) use fast_function;

/// Add a method to a class, to be called without a tuple or a dictionary of arguments.
///
/// `function` is made by `fast_function` for that class.
pub fn add_fast_method(
    class: &Bound<'_, PyType>,
    name: &'static CStr,
    doc: &'static CStr,
    function: ffi::PyCFunctionFast,
) -> PyResult<()> {
    let definition = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer {
            PyCFunctionFast: function,
        },
        ml_flags: ffi::METH_FASTCALL,
        ml_doc: doc.as_ptr(),
    }));
    // SAFETY: the definition lives for ever, as the method may.
    let method = unsafe {
        let method = ffi::PyDescr_NewMethod(class.as_type_ptr(), definition);
        Bound::from_owned_ptr_or_err(class.py(), method)?
    };
    class.setattr(name.to_str()?, method)
}

/// Convert an argument that must be an integer; beyond 64 bits the nearest that fits.
pub fn integer(argument: Borrowed<'_, '_, PyAny>) -> PyResult<i64> {
    let mut overflow: c_int = 0;
    // SAFETY: any object may be asked; -1 may come with an error.
    let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(argument.as_ptr(), &raw mut overflow) };
    match overflow {
        0 if value == -1 => PyErr::take(argument.py()).map_or(Ok(value), Err),
        0 => Ok(value),
        1.. => Ok(i64::MAX),
        _ => Ok(i64::MIN),
    }
}

/// Return the hash of a string; Python keeps it in the string.
pub fn hash_of(text: Borrowed<'_, '_, PyString>) -> usize {
    // SAFETY: a string can always be hashed.
    unsafe { ffi::PyObject_Hash(text.as_ptr()) }.cast_unsigned()
}

/// Return whether two strings are equal.
pub fn same_text(one: Borrowed<'_, '_, PyString>, other: Borrowed<'_, '_, PyString>) -> bool {
    // SAFETY: both are strings; of such, equality is decided without an error.
    unsafe { ffi::PyUnicode_Compare(one.as_ptr(), other.as_ptr()) == 0 }
}

/// A value made of a descriptor that it must not close: the owner does.
pub struct Unowned<T> {
    held: Option<T>,
    give_back: fn(T) -> OwnedFd,
}

impl<T> Unowned<T> {
    /// Make it of an open descriptor; `give_back` returns the same one.
    ///
    /// `make` cannot fail: an error would close a descriptor that is not ours.
    pub fn new(descriptor: RawFd, make: fn(OwnedFd) -> T, give_back: fn(T) -> OwnedFd) -> Self {
        // SAFETY: `drop` takes the descriptor back before anything can close it.
        let held = make(unsafe { OwnedFd::from_raw_fd(descriptor) });
        Self {
            held: Some(held),
            give_back,
        }
    }

    pub fn get(&self) -> &T {
        self.held.as_ref().expect("given back by drop only")
    }
}

impl<T> Drop for Unowned<T> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            let _: RawFd = (self.give_back)(held).into_raw_fd();
        }
    }
}

// The stable ABI has the function alone, which looks again whether the member exists.
#[cfg(not(Py_LIMITED_API))]
use ffi::PyTuple_GET_ITEM as get_item;
#[cfg(Py_LIMITED_API)]
use ffi::PyTuple_GetItem as get_item;

/// Return a member of a tuple of this size; it lives as long as the tuple.
pub fn member<'a, 'py>(
    tuple: Borrowed<'a, 'py, PyTuple>,
    index: usize,
) -> Option<Borrowed<'a, 'py, PyAny>> {
    if index >= tuple.len() {
        return None;
    }
    // SAFETY: the tuple has a member there, and never loses it.
    unsafe {
        let member = get_item(tuple.as_ptr(), index.cast_signed());
        Some(Borrowed::from_ptr(tuple.py(), member))
    }
}

/// A value that is only used with the interpreter held: cheaper than a mutex by ten nanoseconds.
///
/// Sound because this module cannot be used without the interpreter lock (`lib`).
#[derive(Default)]
pub struct Held<T> {
    value: UnsafeCell<T>,
    busy: Cell<bool>,
}

// SAFETY: both fields are touched in `with` only, by the one thread that holds the interpreter.
unsafe impl<T: Send> Sync for Held<T> {}

impl<T> Held<T> {
    /// Call `work` with the value; `None` without the call if it is in use by another call, which
    /// has released the interpreter meanwhile or called back in here.
    #[inline]
    pub fn with<R>(&self, _py: Python<'_>, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.busy.replace(true) {
            return None;
        }
        // SAFETY: `busy` was not set, so no other reference to the value is in use.
        let result = work(unsafe { &mut *self.value.get() });
        self.busy.set(false);
        Some(result)
    }
}

/// Send bytes over an attached socket, without waiting but for `ask`: see `Socket::send_asking`.
///
/// # Errors
/// The number of `errno`.
pub fn send_attached(
    socket: &urds_client::Socket,
    descriptor: i32,
    outgoing: &urds_client::Outgoing,
    bytes: &[u8],
    ask: impl FnMut() -> Result<(), i32>,
) -> Result<usize, i32> {
    let parts = [libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }];
    // SAFETY: the bytes are readable and live through the call.
    let parts = unsafe { urds_client::sys::parts::Readable::new(&parts) };
    socket.send_asking(descriptor, outgoing, parts, true, ask)
}

/// Own a descriptor that no other owns: it was made by the caller, or given to it for good.
pub fn owned(descriptor: i32) -> std::os::fd::OwnedFd {
    // SAFETY: the callers' word, above; a number that is not open fails each call.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(descriptor) }
}

/// Make an instance of a subclass of `tuple` that adds nothing to it, as `tuple.__new__` does.
pub fn tuple_of_class<'py, const N: usize>(
    class: &Bound<'py, PyType>,
    values: [Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyAny>> {
    let py = class.py();
    // SAFETY: the allocator of a class whose instances vary in length makes one with room for so many
    // members, null for now; it is ours alone, so that its members may be set. Null comes with an error.
    unsafe {
        let made = ffi::PyType_GenericAlloc(class.as_type_ptr(), N.cast_signed());
        let made = Bound::from_owned_ptr_or_err(py, made)?;
        for (place, value) in values.into_iter().enumerate() {
            if ffi::PyTuple_SetItem(made.as_ptr(), place.cast_signed(), value.into_ptr()) != 0 {
                return Err(PyErr::fetch(py));
            }
        }
        Ok(made)
    }
}
