//! Has the linker redirect these calls of the interpreter to `sys::exit`, pyo3's among them: the
//! symbol `name` resolves to `__wrap_name`, and `__real_name` to `name` itself.

/// As in `sys::exit`; one that is missing here or there, or that the crate does not use, keeps the
/// module from loading.
const WRAPPED: [&str; 18] = [
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
    "PyTuple_New",
];
const FULL_ABI: [&str; 3] = [
    "PyObject_Vectorcall",
    "PyObject_VectorcallMethod",
    "_Py_Dealloc",
];
const STABLE_ABI: [&str; 1] = ["_Py_DecRef"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    pyo3_build_config::use_pyo3_cfgs();
    let stable = pyo3_build_config::get().abi3;
    let own: &[&str] = if stable { &STABLE_ABI } else { &FULL_ABI };
    for name in WRAPPED.iter().chain(own) {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--wrap={name}");
    }
}
