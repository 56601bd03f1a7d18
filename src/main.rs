//! main
fn main() { for (n, c) in daytona_controller::api::crds().unwrap() { println!("# {n}\n---\n{}", daytona_controller::api::to_yaml(&c).unwrap()); } }
