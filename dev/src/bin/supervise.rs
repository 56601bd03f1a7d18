//! supervise
fn main() {}
