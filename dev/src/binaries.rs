//! binaries
