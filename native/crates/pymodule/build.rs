//! Has the linker redirect these calls of the interpreter to `sys::exit`, pyo3's among them: the
//! symbol `name` resolves to `__wrap_name`, and `__real_name` to `name` itself.

/// As in `sys::exit`; one that is missing here or there, or that the crate does not use, keeps the
/// module from loading.
const WRAPPED: [&str; 21] = [
    "PyBuffer_Release",
    "PyErr_CheckSignals",
    "PyErr_WriteUnraisable",
    "PyEval_RestoreThread",
    "PyImport_Import",
    "PyIter_Next",
    "PyList_New",
    "PyNumber_Index",
    "PyObject_Call",
    "PyObject_CallNoArgs",
    "PyObject_ClearWeakRefs",
    "PyObject_GetAttr",
    "PyObject_GetBuffer",
    "PyObject_GetIter",
    "PyObject_IsTrue",
    "PyObject_Size",
    "PyObject_Str",
    "PyObject_Vectorcall",
    "PyObject_VectorcallMethod",
    "PyTuple_New",
    "_Py_Dealloc",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in WRAPPED {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--wrap={name}");
    }
}
