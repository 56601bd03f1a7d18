//! local-daytona
fn main() {}
