//! Names for calls: the path with placeholders, and the objects it is about.

/// What a path says about a call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) pattern: String,
    pub(crate) sandbox: Option<String>,
    pub(crate) session: Option<String>,
    pub(super) command: Option<String>,
}

const PATTERNS: &[&str] = &[
    "/api/config",
    "/api/sandbox",
    "/api/sandbox/{sandbox}",
    "/api/sandbox/{sandbox}/autostop/{minutes}",
    "/api/sandbox/{sandbox}/autoarchive/{minutes}",
    "/api/sandbox/{sandbox}/autodelete/{minutes}",
    "/api/sandbox/{sandbox}/autopause/{minutes}",
    "/api/sandbox/{sandbox}/ttl/{minutes}",
    "/api/sandbox/{sandbox}/public/{public}",
    "/api/sandbox/{sandbox}/{operation}",
    "/toolbox/{sandbox}/process/session",
    "/toolbox/{sandbox}/process/session/{session}",
    "/toolbox/{sandbox}/process/session/{session}/exec",
    "/toolbox/{sandbox}/process/session/{session}/command/{command}",
    "/toolbox/{sandbox}/process/session/{session}/command/{command}/logs",
    "/toolbox/{sandbox}/process/session/{session}/command/{command}/input",
    "/toolbox/{sandbox}/process/{operation}",
    "/toolbox/{sandbox}/files/{operation}",
    "/toolbox/{sandbox}/{operation}",
];

/// Finds the pattern of `path`; an unknown path is its own pattern.
pub(crate) fn name(path: &str) -> Route {
    let known = PATTERNS.iter().find_map(|pattern| fit(pattern, path));
    known.unwrap_or_else(|| Route { pattern: path.to_owned(), ..Route::default() })
}

fn fit(pattern: &str, path: &str) -> Option<Route> {
    let mut route = Route::default();
    let mut segments = path.split('/');
    for expected in pattern.split('/') {
        let segment = segments.next()?;
        let value = || Some(segment.to_owned());
        match expected {
            "{sandbox}" => route.sandbox = value(),
            "{session}" => route.session = value(),
            "{command}" => route.command = value(),
            "{minutes}" | "{public}" | "{operation}" => {}
            _ if expected != segment => return None,
            _ => {}
        }
        if !segment.is_empty() {
            route.pattern.push('/');
            // An operation is a fixed word of the service, so it stays readable.
            let operation = expected == "{operation}";
            route.pattern.push_str(if operation { segment } else { expected });
        }
    }
    segments.next().is_none().then_some(route)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_named_by_its_pattern_and_its_objects() {
        let route = name("/toolbox/sb/process/session/s1/command/c1/logs");
        assert_eq!(route.pattern, "/toolbox/{sandbox}/process/session/{session}/command/{command}/logs");
        assert_eq!(
            (route.sandbox.as_deref(), route.session.as_deref(), route.command.as_deref()),
            (Some("sb"), Some("s1"), Some("c1"))
        );
    }

    #[test]
    fn fixed_words_are_preferred_and_kept() {
        assert_eq!(name("/toolbox/sb/process/session").pattern, "/toolbox/{sandbox}/process/session");
        assert_eq!(name("/toolbox/sb/process/execute").pattern, "/toolbox/{sandbox}/process/execute");
        assert_eq!(name("/api/sandbox/x/stop").pattern, "/api/sandbox/{sandbox}/stop");
        assert_eq!(name("/api/sandbox/x/autostop/5").pattern, "/api/sandbox/{sandbox}/autostop/{minutes}");
        assert_eq!(name("/api/else").pattern, "/api/else");
    }
}
