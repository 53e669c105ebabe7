//! Work requests of Python as the engine has them: native records, or any with their fields.

use std::borrow::Borrow;
use std::sync::Arc;

use pyo3::exceptions::PyOverflowError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PyString, PyTuple};
use urds_verbs::numbers::Opcode;
use urds_verbs::work::{
    Binding, Destination, Doubts, Extra, Opcoded, Operands, Own, Piece, Pieces, RecvWork, SendWork,
};

use crate::verbs::memory::Buffer;
use crate::verbs::records::{RecvWR, SGE, SendWR};
use crate::verbs::regions::{MemoryWindow, Region};
use crate::verbs::values::{integer, route_of, tables, wide};

/// Call `post` with each request of one, a list or a tuple.
pub fn each(
    given: &Bound<'_, PyAny>,
    mut post: impl FnMut(&Bound<'_, PyAny>) -> PyResult<()>,
) -> PyResult<()> {
    if given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>() {
        for one in given.try_iter()? {
            post(&one?)?;
        }
        return Ok(());
    }
    post(given)
}

/// Read a receive.
pub fn recv_work(object: &Bound<'_, PyAny>) -> PyResult<RecvWork> {
    let py = object.py();
    if let Ok(native) = object.cast_exact::<RecvWR>() {
        return recv_record(py, &native.borrow());
    }
    Ok(RecvWork {
        wr_id: number("wr_id", &object.getattr(intern!(py, "wr_id"))?)?,
        pieces: pieces_of(&object.getattr(intern!(py, "sg"))?)?,
        num_sge: object.getattr(intern!(py, "num_sge"))?.extract()?,
    })
}

/// Read a native record of a receive.
#[inline]
pub fn recv_record(py: Python<'_>, record: &RecvWR) -> PyResult<RecvWork> {
    Ok(RecvWork {
        wr_id: number("wr_id", record.wr_id.bind(py))?,
        pieces: pieces_of(record.sg.bind(py))?,
        num_sge: record.num_sge.extract(py)?,
    })
}

/// Read a request.
pub fn send_work(object: &Bound<'_, PyAny>) -> PyResult<(Opcoded, Doubts)> {
    let py = object.py();
    if let Ok(native) = object.cast_exact::<SendWR>() {
        return send_record(py, &native.borrow());
    }
    read(|_, name| object.getattr(name(py)))
}

/// Read a native record of a request.
#[inline]
pub fn send_record(py: Python<'_>, record: &SendWR) -> PyResult<(Opcoded, Doubts)> {
    read(|field, _| Ok(field(record).bind(py)))
}

type Field = fn(&SendWR) -> &Py<PyAny>;
type Name = for<'py> fn(Python<'py>) -> &'py Bound<'py, PyString>;

fn read<'py, B: Borrow<Bound<'py, PyAny>>>(
    at: impl Fn(Field, Name) -> PyResult<B>,
) -> PyResult<(Opcoded, Doubts)> {
    macro_rules! field {
        ($name:ident) => {
            seen(&at(
                |record| &record.$name,
                |py| intern!(py, stringify!($name)),
            )?)
        };
    }
    macro_rules! number_of {
        ($name:ident) => {
            number(stringify!($name), field!($name))?
        };
    }
    let wr_id = number_of!(wr_id);
    let Some(known) = field!(opcode).extract::<i64>().ok().and_then(Opcode::of) else {
        let name = field!(opcode).repr()?.to_string();
        return Ok((Opcoded::Unknown { wr_id, name }, Doubts::default()));
    };
    let mut doubts = Doubts::default();
    let mut work = SendWork::boxed(wr_id, known, pieces_of(field!(sg))?);
    work.flags = u32::try_from(integer(field!(send_flags))?)?;
    match own_data(field!(data))? {
        Ok(own) => work.own = own,
        Err(reason) => doubts.data = Some(reason),
    }
    work.num_sge = field!(num_sge).extract()?;
    if known.invalidates() {
        work.invalidate_rkey = number_of!(invalidate_rkey);
    } else {
        work.imm_data = number_of!(imm_data);
    }
    work.rkey = number_of!(rkey);
    work.remote_addr = masked(field!(remote_addr))?;
    if !field!(ah).is_none() {
        work.extra = Extra::Destination(Box::new(Destination {
            route: route_of(field!(ah))?,
            qpn: number_of!(remote_qpn),
            qkey: number_of!(remote_qkey),
        }));
    }
    if !known.operands().is_empty() {
        let mut operand = |name, value| operand_of(value, name, &mut doubts);
        work.extra = Extra::Operands(Box::new(Operands {
            compare_add: operand("compare_add", field!(compare_add))?,
            swap: operand("swap", field!(swap))?,
            compare_mask: operand("compare_mask", field!(compare_mask))?,
            swap_mask: operand("swap_mask", field!(swap_mask))?,
            boundary: operand("boundary", field!(boundary))?,
        }));
    }
    if known == Opcode::BindMw
        && let Some(binding) = binding_of(field!(window), field!(bind))?
    {
        work.extra = Extra::Binding(Box::new(binding));
    }
    Ok((Opcoded::Known(work), doubts))
}

fn seen<'a, 'py, B: Borrow<Bound<'py, PyAny>>>(object: &'a B) -> &'a Bound<'py, PyAny> {
    object.borrow()
}

/// Read an unsigned integer; one that `T` cannot hold is an `OverflowError` with field and limit.
fn number<T: Unsigned>(name: &str, value: &Bound<'_, PyAny>) -> PyResult<T> {
    value.extract().map_err(|error: PyErr| {
        let is_beyond = error.is_instance_of::<PyOverflowError>(value.py());
        if is_beyond {
            beyond(name, value, T::MOST)
        } else {
            error
        }
    })
}

#[cold]
fn beyond(name: &str, value: &Bound<'_, PyAny>, most: u64) -> PyErr {
    PyOverflowError::new_err(format!("{name} {value}, from 0 to {most}"))
}

/// An integer of a work request.
trait Unsigned: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr> {
    const MOST: u64;
}

impl Unsigned for u32 {
    const MOST: u64 = u32::MAX as u64;
}

impl Unsigned for u64 {
    const MOST: u64 = u64::MAX;
}

/// Read an operand of an atomic; one beyond 64 bits is a doubt, which the post reports.
fn operand_of(value: &Bound<'_, PyAny>, name: &'static str, doubts: &mut Doubts) -> PyResult<u64> {
    if let Ok(number) = value.extract() {
        return Ok(number);
    }
    let hexadecimal = value.call_method1("__format__", ("#x",))?;
    doubts.operands.push((name, hexadecimal.to_string()));
    Ok(0)
}

/// Read an address; one beyond 64 bits wraps, and the peer refuses it.
fn masked(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Ok(address) = object.extract() {
        return Ok(address);
    }
    let all_ones = &tables(object.py())?.all_ones;
    object.bitand(all_ones)?.extract()
}

fn pieces_of(object: &Bound<'_, PyAny>) -> PyResult<Pieces> {
    read_pieces(object).map_err(|error| no_pieces(object).err().unwrap_or(error))
}

/// Say what is wanted in a list of pieces that could not be read. Raises `TypeError`.
#[cold]
fn no_pieces(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let records = object.py().import("urds.verbs.records")?;
    records.getattr("demand_pieces")?.call1((object,)).map(drop)
}

#[inline]
fn read_pieces(object: &Bound<'_, PyAny>) -> PyResult<Pieces> {
    if let Ok(list) = object.cast_exact::<PyList>() {
        match list.len() {
            0 => return Ok(Pieces::None),
            1 => return Ok(Pieces::One(piece_of(&list.get_item(0)?)?)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    for piece in object.try_iter()? {
        found.push(piece_of(&piece?)?);
    }
    Ok(match found.as_slice() {
        [] => Pieces::None,
        [piece] => Pieces::One(*piece),
        _ => Pieces::Many(found.into()),
    })
}

fn piece_of(object: &Bound<'_, PyAny>) -> PyResult<Piece> {
    if let Ok(native) = object.cast_exact::<SGE>()
        && let Some(piece) = native.get().piece()
    {
        return Ok(piece);
    }
    let py = object.py();
    let length = integer(&object.getattr(intern!(py, "length"))?)?;
    let address = object.getattr(intern!(py, "addr"))?;
    let lkey = object.getattr(intern!(py, "lkey"))?;
    Ok(Piece {
        address: wide(&address)?,
        length,
        lkey: lkey.extract().or_else(|error: PyErr| {
            // 0 is no key either.
            let is_beyond = error.is_instance_of::<PyOverflowError>(py);
            if is_beyond { Ok(0) } else { Err(error) }
        })?,
    })
}

/// Return the bytes that a request brings itself, or why they are not plain ones.
fn own_data(object: &Bound<'_, PyAny>) -> PyResult<Result<Own, String>> {
    if object.is_none() {
        return Ok(Ok(Own::None));
    }
    if let Ok(view) = object.cast::<PyMemoryView>() {
        let format = view.getattr("format")?;
        let dimensions: usize = view.getattr("ndim")?.extract()?;
        let is_contiguous: bool = view.getattr("contiguous")?.extract()?;
        if !(format.eq("B")? && dimensions == 1 && is_contiguous) {
            let format = format.repr()?;
            return Ok(Err(format!(
                "bytes of format {format}, {dimensions} dimensions: not plain bytes"
            )));
        }
    } else if !object.is_instance_of::<PyBytes>() {
        let class = object.get_type().name()?;
        return Ok(Err(format!(
            "bytes of type {class}, neither bytes nor memoryview"
        )));
    }
    own_bytes(object).map(Ok)
}

/// Return the bytes of a short form, kept until it completes.
pub fn own_bytes(object: &Bound<'_, PyAny>) -> PyResult<Own> {
    let buffer = Buffer::of(object)?;
    let length = buffer.length();
    Ok(Own::Kept(Arc::new(buffer), length))
}

fn binding_of(window: &Bound<'_, PyAny>, bind: &Bound<'_, PyAny>) -> PyResult<Option<Binding>> {
    let py = window.py();
    let class = tables(py)?.window_binding.bind(py);
    if window.is_none() || !bind.is_instance(class)? {
        return Ok(None);
    }
    let window = window.cast::<MemoryWindow>()?.get();
    let region = bind.getattr("region")?;
    let region = region.cast::<Region>()?.get();
    Ok(Some(Binding {
        window: window.id,
        region: region.id,
        address: wide(&bind.getattr("address")?)?,
        length: wide(&bind.getattr("length")?)?,
        access: u32::try_from(integer(&bind.getattr("access")?)?)?,
    }))
}
