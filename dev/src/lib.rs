//! What only serves trying and testing daytona-controller. Nothing here is in the shipped binary,
//! and nothing here shares a type with it: a shared type would be a shared mistake.

pub mod bench;
pub mod binaries;
pub mod cluster;
pub mod control_plane;
pub mod demo;
pub mod enumerate;
pub mod faults;
pub mod install;
pub mod kubectl;
pub mod local_daytona;
pub mod programs;
pub mod proxy;
pub mod python;
pub mod supervise;
pub mod wait;
