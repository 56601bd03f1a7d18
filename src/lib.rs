//! daytona-controller
