//! local_daytona
