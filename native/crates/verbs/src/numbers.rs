//! Numbers of the verbs interface; `urds.verbs.engine.numbers` has the same, with their sources.

pub const LOCAL_WRITE: u32 = 1;
pub const REMOTE_WRITE: u32 = 2;
pub const REMOTE_READ: u32 = 4;
pub const REMOTE_ATOMIC: u32 = 8;
pub const MW_BIND: u32 = 16;
pub const KNOWN_ACCESS: u32 = 0x1F;
/// Hints: ignored where unknown.
pub const OPTIONAL_ACCESS: u32 = 0x3FF0_0000;

pub const SEND_FENCE: u32 = 1;
pub const SEND_SIGNALED: u32 = 2;
pub const SEND_SOLICITED: u32 = 4;
pub const SEND_INLINE: u32 = 8;

pub const WC_GRH: u8 = 1;
pub const WC_WITH_IMM: u8 = 2;
pub const WC_WITH_INV: u8 = 8;

pub const PSN_BITS: u32 = 24;
pub const PSN_MASK: i64 = (1 << PSN_BITS) - 1;
pub const ATOMIC_BYTES: usize = 8;
pub const MESSAGE_BYTES_MAX: u64 = 1 << 31;
pub const GRH_BYTES: usize = 40;
pub const GID_BYTES: usize = 16;
pub const RNR_RETRY_FOREVER: i64 = 7;

/// Times of the codes of `min_rnr_timer`, in units of 10 us.
const RNR_10_US: [i64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Return the pause that a code of `min_rnr_timer` asks for.
pub fn rnr_timer_ns(code: u8) -> i64 {
    RNR_10_US[usize::from(code & 31)] * 10_000
}

/// Define an enumeration with a number and a name of each member, and both look-ups.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($member:ident = $value:literal $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name { $($member = $value),* }

        impl $name {
            pub const NUMBERS: &[u8] = &[$($value),*];

            /// Return the member of a number, `None` if there is none.
            pub fn of(number: i64) -> Option<Self> {
                match number { $($value => Some(Self::$member),)* _ => None }
            }

            /// Return its name in Python.
            pub fn name(self) -> &'static str {
                match self { $(Self::$member => $text),* }
            }
        }
    };
}

numbered! {
    /// Types of queue pair.
    QpKind { Rc = 2 "RC", Ud = 4 "UD" }
}

numbered! {
    /// States of a queue pair.
    QpState {
        Reset = 0 "RESET", Init = 1 "INIT", Rtr = 2 "RTR", Rts = 3 "RTS", Sqd = 4 "SQD",
        Sqe = 5 "SQE", Err = 6 "ERR",
    }
}

impl QpState {
    /// Return whether packets of the peer are served.
    pub fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Return whether requests may be posted and their answers count.
    pub fn sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }
}

numbered! {
    /// How a work request ended.
    Status {
        Success = 0 "SUCCESS", LocLenErr = 1 "LOC_LEN_ERR", LocQpOpErr = 2 "LOC_QP_OP_ERR",
        LocProtErr = 4 "LOC_PROT_ERR", WrFlushErr = 5 "WR_FLUSH_ERR", MwBindErr = 6 "MW_BIND_ERR",
        BadRespErr = 7 "BAD_RESP_ERR", RemInvReqErr = 9 "REM_INV_REQ_ERR",
        RemAccessErr = 10 "REM_ACCESS_ERR", RemOpErr = 11 "REM_OP_ERR",
        RetryExcErr = 12 "RETRY_EXC_ERR", RnrRetryExcErr = 13 "RNR_RETRY_EXC_ERR",
    }
}

numbered! {
    /// What a work completion completes.
    WcOpcode {
        Send = 0 "SEND", RdmaWrite = 1 "RDMA_WRITE", RdmaRead = 2 "RDMA_READ",
        CompSwap = 3 "COMP_SWAP", FetchAdd = 4 "FETCH_ADD", BindMw = 5 "BIND_MW",
        LocalInv = 6 "LOCAL_INV", Recv = 128 "RECV", RecvRdmaWithImm = 129 "RECV_RDMA_WITH_IMM",
    }
}

numbered! {
    /// Events of an object outside any work request.
    AsyncEvent {
        CqErr = 0 "CQ_ERR", QpReqErr = 2 "QP_REQ_ERR", QpAccessErr = 3 "QP_ACCESS_ERR",
        CommEst = 4 "COMM_EST", SqDrained = 5 "SQ_DRAINED",
        SrqLimitReached = 15 "SRQ_LIMIT_REACHED", QpLastWqeReached = 16 "QP_LAST_WQE_REACHED",
        QpRecvSoftWatermark = 100 "QP_RECV_SOFT_WATERMARK",
        QpRecvHardWatermark = 101 "QP_RECV_HARD_WATERMARK",
    }
}

numbered! {
    /// Opcodes of send work requests.
    Opcode {
        RdmaWrite = 0 "RDMA_WRITE", RdmaWriteWithImm = 1 "RDMA_WRITE_WITH_IMM", Send = 2 "SEND",
        SendWithImm = 3 "SEND_WITH_IMM", RdmaRead = 4 "RDMA_READ",
        CompSwap = 5 "ATOMIC_CMP_AND_SWP", FetchAdd = 6 "ATOMIC_FETCH_AND_ADD",
        LocalInv = 7 "LOCAL_INV", BindMw = 8 "BIND_MW", SendWithInv = 9 "SEND_WITH_INV",
        MaskedCompSwap = 12 "MASKED_ATOMIC_CMP_AND_SWP",
        MaskedFetchAdd = 13 "MASKED_ATOMIC_FETCH_AND_ADD",
    }
}

numbered! {
    /// Kinds of packet. Requests up to `MaskedAdd`, then responses, then the datagram.
    Kind {
        Send = 0 "SEND", Write = 1 "WRITE", ReadRequest = 2 "READ_REQUEST",
        AtomicSwap = 3 "ATOMIC_SWAP", AtomicAdd = 4 "ATOMIC_ADD", MaskedSwap = 5 "MASKED_SWAP",
        MaskedAdd = 6 "MASKED_ADD", ReadResponse = 8 "READ_RESPONSE",
        AtomicResponse = 9 "ATOMIC_RESPONSE", Ack = 10 "ACK", Datagram = 16 "DATAGRAM",
    }
}

impl Kind {
    pub fn is_atomic(self) -> bool {
        matches!(
            self,
            Self::AtomicSwap | Self::AtomicAdd | Self::MaskedSwap | Self::MaskedAdd
        )
    }

    /// Return whether its answer brings data, which the peer has to be ready to send again.
    pub fn is_answered(self) -> bool {
        self == Self::ReadRequest || self.is_atomic()
    }

    /// Return whether it answers a request.
    pub fn is_answer(self) -> bool {
        matches!(self, Self::ReadResponse | Self::AtomicResponse | Self::Ack)
    }
}

impl Opcode {
    pub fn completes_as(self) -> WcOpcode {
        match self {
            Self::Send | Self::SendWithImm | Self::SendWithInv => WcOpcode::Send,
            Self::RdmaWrite | Self::RdmaWriteWithImm => WcOpcode::RdmaWrite,
            Self::RdmaRead => WcOpcode::RdmaRead,
            Self::CompSwap | Self::MaskedCompSwap => WcOpcode::CompSwap,
            Self::FetchAdd | Self::MaskedFetchAdd => WcOpcode::FetchAdd,
            Self::BindMw => WcOpcode::BindMw,
            Self::LocalInv => WcOpcode::LocalInv,
        }
    }

    /// Return the kind of its packets; `None`: it is carried out here, without any.
    pub fn kind(self) -> Option<Kind> {
        match self {
            Self::Send | Self::SendWithImm | Self::SendWithInv => Some(Kind::Send),
            Self::RdmaWrite | Self::RdmaWriteWithImm => Some(Kind::Write),
            Self::RdmaRead => Some(Kind::ReadRequest),
            Self::CompSwap => Some(Kind::AtomicSwap),
            Self::FetchAdd => Some(Kind::AtomicAdd),
            Self::MaskedCompSwap => Some(Kind::MaskedSwap),
            Self::MaskedFetchAdd => Some(Kind::MaskedAdd),
            Self::BindMw | Self::LocalInv => None,
        }
    }

    /// Return whether its message takes a receive of the peer.
    pub fn takes_receive(self) -> bool {
        self.kind() == Some(Kind::Send) || self == Self::RdmaWriteWithImm
    }

    /// Return whether its immediate is a key to invalidate.
    pub fn invalidates(self) -> bool {
        matches!(self, Self::SendWithInv | Self::LocalInv)
    }

    /// Return the operands of an atomic operation, which have to fit 64 bits.
    pub fn operands(self) -> &'static [&'static str] {
        match self {
            Self::CompSwap => &["compare_add", "swap"],
            Self::FetchAdd => &["compare_add"],
            Self::MaskedCompSwap => &["compare_add", "swap", "compare_mask", "swap_mask"],
            Self::MaskedFetchAdd => &["compare_add", "boundary"],
            _ => &[],
        }
    }
}
