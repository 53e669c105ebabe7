//! Records of requests that a program makes per message, as classes of this module.
//!
//! They have the names, fields, defaults, equality, text and pickled form of the dataclasses in
//! `urds.verbs.engine.work`, and the engine reads them without an attribute look-up.

use pyo3::class::basic::CompareOp;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyTuple};
use urds_verbs::work::Piece;

use crate::verbs::values::tables;

/// One piece of registered memory.
#[allow(clippy::upper_case_acronyms)] // the name in verbs
#[pyclass(frozen, subclass, weakref, module = "urds_native")]
pub struct SGE {
    /// Plain integers of the width that each field has; else what was given.
    value: Result<Piece, [Py<PyAny>; 3]>,
}

const SGE_FIELDS: &str = "addr length lkey";

impl SGE {
    /// Return the piece; `None` if a value is no plain integer, or too wide.
    #[inline]
    pub fn piece(&self) -> Option<Piece> {
        self.value.as_ref().ok().copied()
    }

    fn field<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Bound<'py, PyAny>> {
        match (&self.value, place) {
            (Err(given), _) => Ok(given[place].bind(py).clone()),
            (Ok(piece), 0) => Ok(piece.address.into_pyobject(py)?.into_any()),
            (Ok(piece), 1) => Ok(piece.length.into_pyobject(py)?.into_any()),
            (Ok(piece), _) => Ok(piece.lkey.into_pyobject(py)?.into_any()),
        }
    }

    fn fields<'py>(&self, py: Python<'py>) -> PyResult<[Bound<'py, PyAny>; 3]> {
        Ok([self.field(py, 0)?, self.field(py, 1)?, self.field(py, 2)?])
    }
}

#[pymethods]
impl SGE {
    #[new]
    fn new(addr: &Bound<'_, PyAny>, length: &Bound<'_, PyAny>, lkey: &Bound<'_, PyAny>) -> Self {
        let plain = || {
            let address = addr.cast_exact::<PyInt>().ok()?.extract::<u64>().ok()?;
            Some(Piece {
                address: i128::from(address),
                length: length.cast_exact::<PyInt>().ok()?.extract().ok()?,
                lkey: lkey.cast_exact::<PyInt>().ok()?.extract().ok()?,
            })
        };
        let given = || [addr, length, lkey].map(|value| value.clone().unbind());
        Self {
            value: plain().ok_or_else(given),
        }
    }

    #[getter]
    fn addr<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.field(py, 0)
    }

    #[getter]
    fn length<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.field(py, 1)
    }

    #[getter]
    fn lkey<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.field(py, 2)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        described(slf.as_any(), SGE_FIELDS)
    }

    fn __richcmp__(
        slf: &Bound<'_, Self>,
        other: &Bound<'_, PyAny>,
        operation: CompareOp,
    ) -> PyResult<Py<PyAny>> {
        compared(slf.as_any(), other, operation, SGE_FIELDS)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        PyTuple::new(py, self.fields(py)?)?.hash()
    }

    fn __getnewargs__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.fields(py)?)
    }

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Err(given) = &self.value {
            for value in given {
                visit.call(value)?;
            }
        }
        Ok(())
    }
}

const RECV_FIELDS: &str = "wr_id sg next_wr num_sge";

/// Room for one message.
#[pyclass(get_all, set_all, subclass, weakref, module = "urds_native")]
pub struct RecvWR {
    pub wr_id: Py<PyAny>,
    pub sg: Py<PyAny>,
    pub next_wr: Py<PyAny>,
    pub num_sge: Py<PyAny>,
}

#[pymethods]
impl RecvWR {
    #[new]
    #[pyo3(signature = (wr_id=None, sg=None, next_wr=None, *, num_sge=None))]
    fn new(
        py: Python<'_>,
        wr_id: Option<Bound<'_, PyAny>>,
        sg: Option<Bound<'_, PyAny>>,
        next_wr: Option<Bound<'_, PyAny>>,
        num_sge: Option<Bound<'_, PyAny>>,
    ) -> Self {
        let zero = zero(py);
        Self {
            wr_id: given(py, wr_id, &zero),
            sg: or_empty_list(py, sg),
            next_wr: or_none(py, next_wr),
            num_sge: or_none(py, num_sge),
        }
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        described(slf.as_any(), RECV_FIELDS)
    }

    fn __richcmp__(
        slf: &Bound<'_, Self>,
        other: &Bound<'_, PyAny>,
        operation: CompareOp,
    ) -> PyResult<Py<PyAny>> {
        compared(slf.as_any(), other, operation, RECV_FIELDS)
    }

    fn __getnewargs_ex__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        arguments(slf.as_any(), RECV_FIELDS)
    }

    #[classattr]
    const __hash__: Option<u8> = None;

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.sg)?;
        visit.call(&self.next_wr)
    }

    fn __clear__(&mut self, py: Python<'_>) {
        (self.sg, self.next_wr) = (py.None(), py.None());
    }
}

const SEND_FIELDS: &str = "wr_id opcode sg send_flags imm_data invalidate_rkey remote_addr rkey \
                           compare_add swap compare_mask swap_mask boundary ah remote_qpn \
                           remote_qkey window bind data next_wr num_sge";

/// One request.
#[pyclass(get_all, set_all, subclass, weakref, module = "urds_native")]
pub struct SendWR {
    pub wr_id: Py<PyAny>,
    pub opcode: Py<PyAny>,
    pub sg: Py<PyAny>,
    pub send_flags: Py<PyAny>,
    pub imm_data: Py<PyAny>,
    pub invalidate_rkey: Py<PyAny>,
    pub remote_addr: Py<PyAny>,
    pub rkey: Py<PyAny>,
    pub compare_add: Py<PyAny>,
    pub swap: Py<PyAny>,
    pub compare_mask: Py<PyAny>,
    pub swap_mask: Py<PyAny>,
    pub boundary: Py<PyAny>,
    pub ah: Py<PyAny>,
    pub remote_qpn: Py<PyAny>,
    pub remote_qkey: Py<PyAny>,
    pub window: Py<PyAny>,
    pub bind: Py<PyAny>,
    pub data: Py<PyAny>,
    pub next_wr: Py<PyAny>,
    pub num_sge: Py<PyAny>,
}

#[pymethods]
impl SendWR {
    #[new]
    #[pyo3(signature = (wr_id=None, opcode=None, sg=None, send_flags=None, imm_data=None, invalidate_rkey=None, remote_addr=None, rkey=None, compare_add=None, swap=None, compare_mask=None, swap_mask=None, boundary=None, ah=None, remote_qpn=None, remote_qkey=None, window=None, bind=None, data=None, next_wr=None, *, num_sge=None))]
    #[allow(clippy::too_many_arguments)] // the values of one record
    fn new(
        py: Python<'_>,
        wr_id: Option<Bound<'_, PyAny>>,
        opcode: Option<Bound<'_, PyAny>>,
        sg: Option<Bound<'_, PyAny>>,
        send_flags: Option<Bound<'_, PyAny>>,
        imm_data: Option<Bound<'_, PyAny>>,
        invalidate_rkey: Option<Bound<'_, PyAny>>,
        remote_addr: Option<Bound<'_, PyAny>>,
        rkey: Option<Bound<'_, PyAny>>,
        compare_add: Option<Bound<'_, PyAny>>,
        swap: Option<Bound<'_, PyAny>>,
        compare_mask: Option<Bound<'_, PyAny>>,
        swap_mask: Option<Bound<'_, PyAny>>,
        boundary: Option<Bound<'_, PyAny>>,
        ah: Option<Bound<'_, PyAny>>,
        remote_qpn: Option<Bound<'_, PyAny>>,
        remote_qkey: Option<Bound<'_, PyAny>>,
        window: Option<Bound<'_, PyAny>>,
        bind: Option<Bound<'_, PyAny>>,
        data: Option<Bound<'_, PyAny>>,
        next_wr: Option<Bound<'_, PyAny>>,
        num_sge: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let tables = tables(py)?;
        let zero = zero(py);
        let or_zero = |value| given(py, value, &zero);
        Ok(Self {
            wr_id: or_zero(wr_id),
            opcode: given(py, opcode, &tables.send),
            sg: or_empty_list(py, sg),
            send_flags: given(py, send_flags, &tables.signaled),
            imm_data: or_zero(imm_data),
            invalidate_rkey: or_zero(invalidate_rkey),
            remote_addr: or_zero(remote_addr),
            rkey: or_zero(rkey),
            compare_add: or_zero(compare_add),
            swap: or_zero(swap),
            compare_mask: given(py, compare_mask, &tables.all_ones),
            swap_mask: given(py, swap_mask, &tables.all_ones),
            boundary: or_zero(boundary),
            ah: or_none(py, ah),
            remote_qpn: or_zero(remote_qpn),
            remote_qkey: or_zero(remote_qkey),
            window: or_none(py, window),
            bind: or_none(py, bind),
            data: or_none(py, data),
            next_wr: or_none(py, next_wr),
            num_sge: or_none(py, num_sge),
        })
    }

    /// Return the length of its message in bytes: of its pieces, or of its own data.
    #[getter]
    fn message_bytes(&self, py: Python<'_>) -> PyResult<i128> {
        let data = self.data.bind(py);
        if !data.is_none() {
            return Ok(i128::try_from(data.len()?).unwrap_or(i128::MAX));
        }
        let mut total = 0_i128;
        for piece in self.sg.bind(py).try_iter()? {
            let length = piece?.getattr("length")?;
            let narrow = length.extract::<i64>().map(i128::from);
            total = total.saturating_add(narrow.or_else(|_| length.extract())?);
        }
        Ok(total)
    }

    fn set_wr_rdma(&mut self, rkey: Py<PyAny>, addr: Py<PyAny>) {
        (self.rkey, self.remote_addr) = (rkey, addr);
    }

    fn set_wr_ud(
        &mut self,
        ah: &Bound<'_, PyAny>,
        qpn: Py<PyAny>,
        qkey: Py<PyAny>,
    ) -> PyResult<()> {
        self.ah = ah
            .getattr_opt("vector")?
            .unwrap_or_else(|| ah.clone())
            .unbind();
        (self.remote_qpn, self.remote_qkey) = (qpn, qkey);
        Ok(())
    }

    #[pyo3(signature = (rkey, addr, compare_add, swap=None))]
    fn set_wr_atomic(
        &mut self,
        py: Python<'_>,
        rkey: Py<PyAny>,
        addr: Py<PyAny>,
        compare_add: Py<PyAny>,
        swap: Option<Bound<'_, PyAny>>,
    ) {
        (self.rkey, self.remote_addr) = (rkey, addr);
        (self.compare_add, self.swap) = (compare_add, given(py, swap, &zero(py)));
    }

    #[pyo3(signature = (
        rkey, addr, compare_add, swap=None, *, compare_mask=None, swap_mask=None, boundary=None
    ))]
    #[allow(clippy::too_many_arguments)] // the values of one record
    fn set_wr_masked_atomic(
        &mut self,
        py: Python<'_>,
        rkey: Py<PyAny>,
        addr: Py<PyAny>,
        compare_add: Py<PyAny>,
        swap: Option<Bound<'_, PyAny>>,
        compare_mask: Option<Bound<'_, PyAny>>,
        swap_mask: Option<Bound<'_, PyAny>>,
        boundary: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let all_ones = &tables(py)?.all_ones;
        self.set_wr_atomic(py, rkey, addr, compare_add, swap);
        self.compare_mask = given(py, compare_mask, all_ones);
        self.swap_mask = given(py, swap_mask, all_ones);
        self.boundary = given(py, boundary, &zero(py));
        Ok(())
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        described(slf.as_any(), SEND_FIELDS)
    }

    fn __richcmp__(
        slf: &Bound<'_, Self>,
        other: &Bound<'_, PyAny>,
        operation: CompareOp,
    ) -> PyResult<Py<PyAny>> {
        compared(slf.as_any(), other, operation, SEND_FIELDS)
    }

    fn __getnewargs_ex__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        arguments(slf.as_any(), SEND_FIELDS)
    }

    #[classattr]
    const __hash__: Option<u8> = None;

    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.sg)?;
        visit.call(&self.ah)?;
        visit.call(&self.window)?;
        visit.call(&self.bind)?;
        visit.call(&self.data)?;
        visit.call(&self.next_wr)?;
        Ok(())
    }

    fn __clear__(&mut self, py: Python<'_>) {
        self.sg = py.None();
        (self.ah, self.window, self.bind) = (py.None(), py.None(), py.None());
        (self.data, self.next_wr) = (py.None(), py.None());
    }
}

// -- what a dataclass does

fn zero(py: Python<'_>) -> Py<PyAny> {
    PyInt::new(py, 0).into_any().unbind()
}

fn given(py: Python<'_>, value: Option<Bound<'_, PyAny>>, default: &Py<PyAny>) -> Py<PyAny> {
    value.map_or_else(|| default.clone_ref(py), Bound::unbind)
}

fn or_none(py: Python<'_>, value: Option<Bound<'_, PyAny>>) -> Py<PyAny> {
    value.map_or_else(|| py.None(), Bound::unbind)
}

fn or_empty_list(py: Python<'_>, value: Option<Bound<'_, PyAny>>) -> Py<PyAny> {
    value.map_or_else(|| PyList::empty(py).into_any().unbind(), Bound::unbind)
}

/// Return the values of the fields that are named, in their order.
fn values<'py>(record: &Bound<'py, PyAny>, fields: &str) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let names = fields.split(' ');
    names.map(|name| record.getattr(name)).collect()
}

fn described(record: &Bound<'_, PyAny>, fields: &str) -> PyResult<String> {
    let mut parts = Vec::new();
    for (name, value) in fields.split(' ').zip(values(record, fields)?) {
        parts.push(format!("{name}={}", value.repr()?));
    }
    let class = record.get_type().qualname()?;
    Ok(format!("{class}({})", parts.join(", ")))
}

fn compared(
    record: &Bound<'_, PyAny>,
    other: &Bound<'_, PyAny>,
    operation: CompareOp,
    fields: &str,
) -> PyResult<Py<PyAny>> {
    let py = record.py();
    let is_equality = matches!(operation, CompareOp::Eq | CompareOp::Ne);
    if !is_equality || !record.get_type().is(other.get_type()) {
        return Ok(py.NotImplemented());
    }
    let mut are_equal = true;
    for (one, two) in values(record, fields)?.iter().zip(values(other, fields)?) {
        are_equal = are_equal && (one.is(&two) || one.eq(&two)?);
    }
    let result = are_equal == matches!(operation, CompareOp::Eq);
    Ok(result.into_pyobject(py)?.to_owned().into_any().unbind())
}

/// Return what makes an equal record: all fields by place, `num_sge`, the last, by name.
fn arguments<'py>(
    record: &Bound<'py, PyAny>,
    fields: &str,
) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
    let py = record.py();
    let mut placed = values(record, fields)?;
    let named = PyDict::new(py);
    named.set_item("num_sge", placed.pop())?;
    Ok((PyTuple::new(py, placed)?, named))
}
