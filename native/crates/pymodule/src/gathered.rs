//! Messages that gathered in the plane, as a transport of messages in Python holds them.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use urds_dataplane::gathering::Gathered;
use urds_path::packed_frames::Budget;

/// See the stub.
#[pyclass(frozen, module = "urds_native")]
pub struct GatheredMessages(pub(crate) Gathered);

/// The number of a mailbox, ports, payload, whether it asks for an acknowledgement.
type Plain<'py> = (u64, u16, u16, Bound<'py, PyBytes>, bool);

#[pymethods]
impl GatheredMessages {
    fn __len__(&self) -> usize {
        self.0.messages.len()
    }

    #[getter]
    fn frame_bytes(&self) -> usize {
        self.0.frame_bytes()
    }

    #[getter]
    fn payload_bytes(&self) -> usize {
        self.0.payload_bytes
    }

    #[pyo3(signature = (sequence, acknowledgement, credit, budget, /))]
    fn emit<'py>(
        &self,
        py: Python<'py>,
        sequence: u64,
        acknowledgement: u64,
        credit: u8,
        budget: (usize, usize, usize, usize),
    ) -> (Bound<'py, PyBytes>, usize, usize, usize) {
        let (packets_left, bytes_left, packets_max, bytes_max) = budget;
        let mut budget = Budget {
            packets_left,
            bytes_left,
            packets_max,
            bytes_max,
        };
        let (bytes, asked) = self.0.emit(sequence, acknowledgement, credit, &mut budget);
        let bytes = PyBytes::new(py, &bytes);
        (bytes, asked, budget.packets_left, budget.bytes_left)
    }

    fn accounts(&self) -> Vec<(u64, usize, usize)> {
        let accounts = self.0.accounts().into_iter();
        accounts
            .map(|(mailbox, messages, bytes)| (mailbox.to_u64(), messages, bytes))
            .collect()
    }

    fn messages<'py>(&self, py: Python<'py>) -> Vec<Plain<'py>> {
        let messages = self.0.messages.iter();
        messages
            .map(|message| {
                (
                    message.mailbox.to_u64(),
                    message.source_port,
                    message.target_port,
                    PyBytes::new(py, message.payload.bytes()),
                    message.asks,
                )
            })
            .collect()
    }
}
