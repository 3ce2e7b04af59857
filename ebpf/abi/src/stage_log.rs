//! The log of the stages that frames pass, from programs that are built with the feature `log`.

use crate::{Address, Vtep};

/// The endpoint whose frames are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct LoggedEndpoint {
    /// IP address; zero for none.
    pub ip: Address,
    /// Interface index of the endpoint's port; zero if it is not on this node.
    pub ifindex: u32,
    /// Zero.
    pub zero: u32,
}

/// Copies of a traced frame that are recorded; further ones are only counted.
pub const TRACED_COPIES: usize = 64;

/// A copy of a traced frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct TracedCopy {
    /// VTEP that it is sent to; zero if it leaves by no tunnel.
    pub vtep: Vtep,
    /// Interface that it is sent to.
    pub ifindex: u32,
    /// Zero.
    pub zero: u32,
}

/// A frame that the agent traces. The programs log every stage then, and record copies instead of sending them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Traced {
    /// VTEP of the sender of a tunnelled frame.
    pub vtep: Vtep,
    /// VNI of a tunnelled frame; zero for other frames.
    pub vni: u32,
    /// 1 while a frame is traced.
    pub enabled: u32,
    /// Interface that the frame is sent to; zero if it is dropped or copied.
    pub ifindex: u32,
    /// Number of copies.
    pub copies: u32,
    /// The first copies, up to [`TRACED_COPIES`].
    pub copy: [TracedCopy; TRACED_COPIES],
}

macro_rules! texts {
    ($(#[$doc:meta])* $name:ident; $($variant:ident = $number:literal, $text:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $name {
            $(#[doc = concat!("In the log: ", $text, ".")] $variant = $number,)*
        }

        impl $name {
            /// The text of a number in the log; `None` for other numbers.
            pub const fn text(number: u32) -> Option<&'static str> {
                match number {
                    $($number => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

texts! {
    /// Stages that log their result.
    LogStage;
    Source = 0, "source";
    Neighbour = 1, "neighbour";
    Track = 2, "track";
    Service = 3, "service";
    Policy = 4, "policy";
    Insert = 5, "insert";
    Verdict = 6, "verdict";
}

texts! {
    /// Results of stages. Numbers below 256 are those of [`DropReason`](crate::DropReason).
    LogResult;
    Passed = 0x100, "passed";
    Answered = 0x101, "answered";
    FlowFound = 0x102, "flow found";
    NoFlow = 0x103, "no flow";
    RulesChanged = 0x104, "flow found, rules have changed";
    NoService = 0x105, "not for a service";
    BackendChosen = 0x106, "backend chosen";
    Allowed = 0x107, "allowed";
    Inserted = 0x108, "flow inserted";
    SlowPath = 0x109, "continues in ctv_slow_path";
    Replicate = 0x10a, "continues in ctv_replicate";
    Copied = 0x10b, "copies sent";
    ToPod = 0x10c, "to a local port";
    ToInterface = 0x10d, "to an interface";
    Queued = 0x10e, "queued";
    Refused = 0x10f, "refused";
    Exists = 0x110, "another CPU has inserted the flow";
}
