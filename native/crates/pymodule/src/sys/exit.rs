//! Threads that the interpreter ends while it is finalised: they hang instead.
//!
//! Before Python 3.14 a thread that takes the interpreter then is ended by `pthread_exit`
//! (`take_gil`, `Python/ceval_gil.c`), whose unwinding may not pass frames of Rust: the process
//! aborts. From 3.14 on it hangs, and so it does here on every release: the linker replaces each
//! call that may wait for the interpreter by a function of this file (`build.rs`), the first frame
//! that the unwinding meets, which stops it there. Such calls are those that take the interpreter
//! back and those that may run Python code, which releases it and takes it back. pyo3 guards
//! `PyGILState_Ensure` in the same way.

#![allow(non_snake_case, clippy::let_unit_value)] // names as the linker makes them

use std::os::raw::{c_int, c_void};
use std::thread;

/// Dropped by an unwinding that is no panic of ours: the thread hangs here.
struct Hang;

impl Drop for Hang {
    fn drop(&mut self) {
        loop {
            thread::park();
        }
    }
}

macro_rules! wrapped {
    ($($wrapper:ident leads to $call:ident($($name:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {$(
        // SAFETY: the linker resolves that name to the interpreter's function of this signature.
        unsafe extern "C-unwind" {
            fn $call($($name: $kind),*) $(-> $result)?;
        }

        // SAFETY: no other symbol of the process has the name, which the linker made.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $wrapper($($name: $kind),*) $(-> $result)? {
            let hang = Hang;
            // SAFETY: it is the caller's call, with its arguments.
            let result = unsafe { $call($($name),*) };
            std::mem::forget(hang);
            result
        }
    )*};
}

type Object = *mut c_void;
type Counted = isize;

wrapped! {
    __wrap_PyBuffer_Release leads to __real_PyBuffer_Release(view: Object);
    __wrap_PyErr_CheckSignals leads to __real_PyErr_CheckSignals() -> c_int;
    __wrap_PyErr_WriteUnraisable leads to __real_PyErr_WriteUnraisable(of: Object);
    __wrap_PyEval_RestoreThread leads to __real_PyEval_RestoreThread(state: Object);
    __wrap_PyImport_Import leads to __real_PyImport_Import(name: Object) -> Object;
    __wrap_PyIter_Next leads to __real_PyIter_Next(iterator: Object) -> Object;
    __wrap_PyList_New leads to __real_PyList_New(length: Counted) -> Object;
    __wrap_PyNumber_Index leads to __real_PyNumber_Index(object: Object) -> Object;
    __wrap_PyObject_Call leads to
        __real_PyObject_Call(callable: Object, arguments: Object, keywords: Object) -> Object;
    __wrap_PyObject_CallNoArgs leads to __real_PyObject_CallNoArgs(callable: Object) -> Object;
    __wrap_PyObject_ClearWeakRefs leads to __real_PyObject_ClearWeakRefs(object: Object);
    __wrap_PyObject_GetAttr leads to
        __real_PyObject_GetAttr(object: Object, name: Object) -> Object;
    __wrap_PyObject_GetBuffer leads to
        __real_PyObject_GetBuffer(object: Object, view: Object, flags: c_int) -> c_int;
    __wrap_PyObject_GetIter leads to __real_PyObject_GetIter(object: Object) -> Object;
    __wrap_PyObject_IsTrue leads to __real_PyObject_IsTrue(object: Object) -> c_int;
    __wrap_PyObject_Size leads to __real_PyObject_Size(object: Object) -> Counted;
    __wrap_PyObject_Str leads to __real_PyObject_Str(object: Object) -> Object;
    __wrap_PyTuple_New leads to __real_PyTuple_New(length: Counted) -> Object;
}

// Full ABI: pyo3 calls by vector, and drops references inline.
#[cfg(not(Py_LIMITED_API))]
wrapped! {
    __wrap_PyObject_Vectorcall leads to __real_PyObject_Vectorcall(
        callable: Object, arguments: Object, count: usize, names: Object
    ) -> Object;
    __wrap_PyObject_VectorcallMethod leads to __real_PyObject_VectorcallMethod(
        name: Object, arguments: Object, count: usize, names: Object
    ) -> Object;
    __wrap__Py_Dealloc leads to __real__Py_Dealloc(object: Object);
}

// The stable ABI of Python 3.11 has neither.
#[cfg(Py_LIMITED_API)]
wrapped! {
    __wrap__Py_DecRef leads to __real__Py_DecRef(object: Object);
}
