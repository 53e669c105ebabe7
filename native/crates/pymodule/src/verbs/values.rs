//! Numbers and records of the verbs engine as Python's enumerations and classes.

use pyo3::exceptions::{PyBaseException, PyOSError, PyOverflowError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyType};
use urds_verbs::attributes::{Attributes, Cap, FIELDS};
use urds_verbs::errors::Rejected;
use urds_verbs::keys::Domain;
use urds_verbs::numbers::{AsyncEvent, GID_BYTES, QpKind, QpState, Status, WcOpcode};
use urds_verbs::work::{Completion, Route};

use crate::errors::EINVAL;
use crate::sys::{Held, tuple_of_class};

const WC_FLAGS: usize = 16; // combinations
const NUMBERS: usize = 16;
const RETURNED: usize = 64;

/// A number and what Python has for it.
type Numbered = (u32, Py<PyAny>);

/// Members and classes of Python's engine that results are made of.
pub struct Tables {
    wc: Py<PyType>,
    statuses: Vec<Py<PyAny>>,
    opcodes: Vec<Py<PyAny>>,
    wc_flags: Vec<Py<PyAny>>,
    pub states: Vec<Py<PyAny>>,
    pub kinds: Vec<Py<PyAny>>,
    pub events: Vec<Py<PyAny>>,
    pub engine_event: Py<PyAny>,
    pub completed: Py<PyAny>,
    pub address_vector: Py<PyAny>,
    pub access_flag: Py<PyAny>,
    pub send: Py<PyAny>,
    pub signaled: Py<PyAny>,
    pub all_ones: Py<PyAny>,
    pub window_binding: Py<PyAny>,
    pub attributes: Py<PyAny>,
    pub capacities: Py<PyAny>,
    pub in_order: Py<PyAny>,
    nested_domain: Py<PyAny>,
    post_error: Py<PyAny>,
    closed_error: Py<PyAny>,
    timeout_error: Py<PyAny>,
    verbs_error: Py<PyAny>,
    engine_form: PyOnceLock<Py<PyAny>>,
    /// Numbers of queue pairs as Python has them, by their last bits: each completion has two.
    numbers: Held<[Option<Numbered>; NUMBERS]>,
    /// Completions that were returned lately, by last bits of their numbers: a program that keeps its
    /// requests gets the same ones again and again, and nothing can change a `WC`.
    returned: Held<Returned>,
}

struct Returned([Option<(Completion, Py<PyAny>)>; RETURNED]);

impl Default for Returned {
    fn default() -> Self {
        Self([const { None }; RETURNED])
    }
}

static TABLES: PyOnceLock<Tables> = PyOnceLock::new();

/// Return the members and classes, looked up once.
pub fn tables(py: Python<'_>) -> PyResult<&Tables> {
    TABLES.get_or_try_init(py, || Tables::new(py))
}

/// A member of an enumeration by its number; places without one are `None`.
fn members(class: &Bound<'_, PyAny>, numbers: &[u8]) -> PyResult<Vec<Py<PyAny>>> {
    let places = 0..=numbers.iter().copied().max().unwrap_or(0);
    let member = |number| {
        if numbers.contains(&number) {
            class.call1((number,)).map(Bound::unbind)
        } else {
            Ok(class.py().None())
        }
    };
    places.map(member).collect()
}

impl Tables {
    fn new(py: Python<'_>) -> PyResult<Self> {
        let numbers = py.import("urds.verbs.engine.numbers")?;
        let work = py.import("urds.verbs.engine.work")?;
        let keys = py.import("urds.verbs.engine.keys")?;
        let attributes = py.import("urds.verbs.engine.attributes")?;
        let errors = py.import("urds.verbs.errors")?;
        let class = |name: &str| numbers.getattr(name);
        let wc_flag = class("WCFlag")?;
        let flags = (0..u8::try_from(WC_FLAGS).unwrap_or(0)).map(|bits| {
            let known = bits & !4; // no flag has this bit
            wc_flag.call1((known,)).map(Bound::unbind)
        });
        Ok(Self {
            wc: work.getattr("WC")?.cast_into::<PyType>()?.unbind(),
            statuses: members(&class("WCStatus")?, Status::NUMBERS)?,
            opcodes: members(&class("WCOpcode")?, WcOpcode::NUMBERS)?,
            wc_flags: flags.collect::<PyResult<_>>()?,
            states: members(&class("QPState")?, QpState::NUMBERS)?,
            kinds: members(&class("QPType")?, QpKind::NUMBERS)?,
            events: members(&class("AsyncEventType")?, AsyncEvent::NUMBERS)?,
            engine_event: work.getattr("EngineEvent")?.unbind(),
            completed: work.getattr("Completed")?.unbind(),
            address_vector: work.getattr("AddressVector")?.unbind(),
            access_flag: class("AccessFlag")?.unbind(),
            send: class("WROpcode")?.getattr("SEND")?.unbind(),
            signaled: class("SendFlag")?.getattr("SIGNALED")?.unbind(),
            all_ones: u64::MAX.into_pyobject(py)?.into_any().unbind(),
            window_binding: keys.getattr("WindowBinding")?.unbind(),
            nested_domain: keys.getattr("NestedDomain")?.unbind(),
            attributes: attributes.getattr("QPAttr")?.unbind(),
            capacities: attributes.getattr("QPCap")?.unbind(),
            post_error: errors.getattr("VerbsPostError")?.getattr("of")?.unbind(),
            closed_error: errors.getattr("VerbsClosedError")?.unbind(),
            timeout_error: errors.getattr("VerbsTimeoutError")?.unbind(),
            verbs_error: errors.getattr("verbs_error")?.unbind(),
            engine_form: PyOnceLock::new(),
            numbers: Held::default(),
            returned: Held::default(),
            in_order: class("ReceiveOrder")?.getattr("IN_ORDER")?.unbind(),
        })
    }

    /// Return a completion as a `WC`; one that was returned lately costs no new object.
    pub fn completion<'py>(
        &self,
        py: Python<'py>,
        completion: &Completion,
    ) -> PyResult<Bound<'py, PyAny>> {
        let number = completion.wr_id ^ u64::from(completion.qpn);
        let place = usize::try_from(number % RETURNED as u64).unwrap_or(0);
        let kept = self.returned.with(py, |returned| match &returned.0[place] {
            Some((known, object)) if known == completion => Some(object.bind(py).clone()),
            _ => None,
        });
        if let Some(Some(object)) = kept {
            return Ok(object);
        }
        let made = self.made(py, completion)?;
        let before = self.returned.with(py, |returned| {
            returned.0[place].replace((*completion, made.clone().unbind()))
        });
        drop(before); // it may be the last one that has it
        Ok(made)
    }

    fn made<'py>(&self, py: Python<'py>, completion: &Completion) -> PyResult<Bound<'py, PyAny>> {
        let values = [
            completion.wr_id.into_pyobject(py)?.into_any(),
            self.statuses[completion.status as usize].bind(py).clone(),
            self.opcodes[completion.opcode as usize].bind(py).clone(),
            completion.byte_len.into_pyobject(py)?.into_any(),
            self.number(py, completion.qpn)?,
            self.number(py, completion.src_qpn)?,
            completion.imm_data.into_pyobject(py)?.into_any(),
            self.wc_flags[usize::from(completion.flags) % WC_FLAGS]
                .bind(py)
                .clone(),
            0_u8.into_pyobject(py)?.into_any(),
            completion
                .solicited
                .into_pyobject(py)?
                .to_owned()
                .into_any(),
        ];
        tuple_of_class(self.wc.bind(py), values)
    }

    /// Return the number of a queue pair; one that was returned lately costs no new object.
    fn number<'py>(&self, py: Python<'py>, number: u32) -> PyResult<Bound<'py, PyAny>> {
        let found = self.numbers.with(py, |numbers| {
            let kept = &mut numbers[number as usize % NUMBERS];
            match kept {
                Some((known, object)) if *known == number => Ok(object.bind(py).clone()),
                _ => {
                    let object = number.into_pyobject(py)?.into_any();
                    *kept = Some((number, object.clone().unbind()));
                    Ok(object)
                }
            }
        });
        found.unwrap_or_else(|| Ok(number.into_pyobject(py)?.into_any()))
    }

    /// Return a request in the engine's form, without objects of `urds.verbs`.
    #[cold]
    pub fn engine_form<'py>(
        &self,
        py: Python<'py>,
        wr: &Bound<'py, PyAny>,
        is_datagram: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let call = self.engine_form.get_or_try_init(py, || {
            let module = py.import("urds.verbs.qp")?;
            module.getattr("engine_form").map(Bound::unbind)
        })?;
        call.bind(py).call1((wr, is_datagram))
    }

    /// Return the error for the request at a place that was rejected.
    #[cold]
    pub fn post_error(
        &self,
        py: Python<'_>,
        error: &Bound<'_, PyBaseException>,
        place: usize,
    ) -> PyResult<PyErr> {
        let made = self.post_error.bind(py).call1((error, place))?;
        Ok(PyErr::from_value(made))
    }

    /// Return an `AddressVector`.
    pub fn route<'py>(&self, py: Python<'py>, route: &Route) -> PyResult<Bound<'py, PyAny>> {
        let gid = PyBytes::new(py, &route.gid);
        self.address_vector.bind(py).call1((gid, route.port))
    }
}

/// Return the error of a refused call.
#[cold]
pub fn refused(error: &Rejected) -> PyErr {
    PyOSError::new_err((error.errno, error.detail.clone()))
}

/// Return the error of a call of a closed object.
#[cold]
pub fn closed(py: Python<'_>, what: &str) -> PyErr {
    let made = tables(py).and_then(|tables| tables.closed_error.bind(py).call1((what,)));
    made.map_or_else(|failure| failure, PyErr::from_value)
}

/// Return the error of a wait whose time is over.
#[cold]
pub fn late(py: Python<'_>, detail: &str) -> PyErr {
    let made = tables(py).and_then(|tables| tables.timeout_error.bind(py).call1((detail,)));
    made.map_or_else(|failure| failure, PyErr::from_value)
}

/// Return an error of the engine as the objects of `urds.verbs` raise it.
#[cold]
pub fn raised_by_verbs(py: Python<'_>, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyOSError>(py) {
        return error;
    }
    let made = tables(py).and_then(|tables| tables.verbs_error.bind(py).call1((error.value(py),)));
    made.map_or_else(|failure| failure, PyErr::from_value)
}

/// Read an `AddressVector`.
pub fn route_of(object: &Bound<'_, PyAny>) -> PyResult<Route> {
    let py = object.py();
    Ok(Route {
        gid: object.getattr(intern!(py, "dgid"))?.extract::<Gid>()?.0,
        port: object.getattr(intern!(py, "port"))?.extract()?,
    })
}

/// The 16 bytes of a GID.
#[derive(Clone, Copy)]
pub struct Gid(pub [u8; GID_BYTES]);

impl<'a, 'py> FromPyObject<'a, 'py> for Gid {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let bytes: &[u8] = object.extract()?;
        let wrong = || PyOSError::new_err((EINVAL, format!("GID of {} bytes", bytes.len())));
        bytes.try_into().map(Self).map_err(|_| wrong())
    }
}

/// Return a domain for an object that stands for one, by its identity.
///
/// The caller keeps the object while the engine knows the domain.
pub fn domain_of(object: &Bound<'_, PyAny>) -> PyResult<Domain> {
    let py = object.py();
    let nested = tables(py)?.nested_domain.bind(py);
    let outer = if object.get_type().is(nested) {
        Some(identity(&object.getattr(intern!(py, "outer"))?))
    } else {
        None
    };
    Ok(Domain {
        own: identity(object),
        outer,
    })
}

fn identity(object: &Bound<'_, PyAny>) -> u64 {
    object.as_ptr() as u64
}

/// Read an integer, also one of an enumeration.
pub fn integer(object: &Bound<'_, PyAny>) -> PyResult<i64> {
    object.extract()
}

/// Read an integer of 128 bits: `OverflowError` beyond.
pub fn wide(object: &Bound<'_, PyAny>) -> PyResult<i128> {
    object.extract()
}

/// Read the capacities of a queue pair.
pub fn cap_of(object: &Bound<'_, PyAny>) -> PyResult<Cap> {
    let field = |name: &str| object.getattr(name)?.extract();
    Ok(Cap {
        max_send_wr: field("max_send_wr")?,
        max_recv_wr: field("max_recv_wr")?,
        max_send_sge: field("max_send_sge")?,
        max_recv_sge: field("max_recv_sge")?,
        max_inline_data: field("max_inline_data")?,
    })
}

/// Read the attributes that a modify brings: those that its mask names.
pub fn attributes_of(object: &Bound<'_, PyAny>, mask: u32, cap: Cap) -> PyResult<Attributes> {
    use urds_verbs::attributes::{AV, CUR_STATE, PATH_MTU, STATE};
    let mut found = Attributes::new(cap);
    if mask & STATE != 0 {
        found.state = state_of(&object.getattr("qp_state")?)?;
    }
    if mask & CUR_STATE != 0 {
        found.current = state_of(&object.getattr("cur_qp_state")?)?;
    }
    let mut numbers = *found.numbers();
    for ((bit, name, _), number) in FIELDS.iter().zip(&mut numbers) {
        if mask & bit != 0 {
            *number = integer(&object.getattr(*name)?)?;
        }
    }
    found.set_numbers(numbers);
    if mask & PATH_MTU != 0 {
        found.path_mtu = object.getattr("path_mtu")?.extract()?;
    }
    if mask & AV != 0 {
        let vector = object.getattr("ah_attr")?;
        found.route = (!vector.is_none()).then(|| route_of(&vector)).transpose()?;
    }
    Ok(found)
}

fn state_of(object: &Bound<'_, PyAny>) -> PyResult<QpState> {
    let number = integer(object)?;
    let wrong = || PyOverflowError::new_err(format!("{number} is no state of a queue pair"));
    QpState::of(number).ok_or_else(wrong)
}
