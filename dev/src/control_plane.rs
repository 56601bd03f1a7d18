//! control_plane
