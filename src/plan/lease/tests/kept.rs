//! What is done where nothing else is.

use serde_json::json;

use super::{
    ending::{seen_with, with_spec},
    *,
};

#[test]
fn what_has_drifted_is_set_where_nothing_else_is_to_be_done() {
    let other = |state: &str| Remote::Present(Sandbox { auto_stop_interval: Some(99.0), ..sandbox(state) });
    let next = |state, session| step(&lease(SessionLives), &Observed { session, ..seen(other(state)) });
    let set = Step::Adjust("box".to_owned(), vec![Setting::AutoStop(15)]);
    assert_eq!((next("started", Session::Serving), next("stopped", Session::NotAsked)), (set.clone(), set));
    assert_eq!(next("started", Session::Listed), Step::ResumeSession);
    assert_eq!(next("error", Session::NotAsked), Step::Rest);
}

#[test]
fn a_sandbox_that_is_not_to_sleep_is_kept_awake() {
    let lease = with_spec(SessionLives, &json!({ "sandbox": { "autoStopMinutes": 0, "autoDeleteMinutes": -1 } }));
    let serves = |kept_awake| Observed {
        session: Session::Serving,
        kept_awake,
        ..seen_with("started", &json!({ "autoStopInterval": 120, "autoArchiveInterval": 60 }))
    };
    assert_eq!(step(&lease, &serves(None)), Step::KeepAwake("box".to_owned()));
    assert_eq!(step(&lease, &serves(Some(Duration::from_mins(39)))), Step::Rest);
    assert_eq!(step(&lease, &serves(Some(Duration::from_mins(40)))), Step::KeepAwake("box".to_owned()));
}
