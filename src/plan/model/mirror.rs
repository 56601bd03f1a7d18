//! Decisions are carried out by `controller/` and, a second time, here. Both have to make the same calls in the same
//! order: it is read from their text, step by step and function by function. What lies between the calls (what is asked
//! of an answer, what is remembered) is not compared.

/// What a call is called in a text, and what it is.
type Words = &'static [(&'static str, &'static str)];

struct Side {
    text: &'static str,
    words: Words,
}

impl Side {
    /// The calls in a part of the text, in their order.
    fn calls(&self, part: &str) -> Vec<&'static str> {
        let found = self.words.iter().flat_map(|(word, call)| part.match_indices(word).map(|(at, _)| (at, *call)));
        let mut found: Vec<(usize, &str)> = found.collect();
        found.sort_unstable();
        found.into_iter().map(|(_, call)| call).collect()
    }

    /// The text of a function.
    fn function(&self, name: &str) -> &'static str {
        let parts = self.text.split_once(&format!("fn {name}("));
        let (before, after) = parts.unwrap_or_else(|| panic!("there is no function {name}"));
        let line = before.rsplit('\n').next().unwrap();
        let indent: String = line.chars().take_while(|c| *c == ' ').collect();
        after.split(&format!("\n{indent}}}\n")).next().unwrap()
    }

    /// The calls of each step that a function carries out, by its name.
    fn steps(&self, function: &str, indent: usize) -> Vec<(&'static str, Vec<&'static str>)> {
        let arm = format!("\n{}", " ".repeat(indent));
        let (first, rest) = (format!("{arm}Step::"), format!("{arm}_ =>"));
        let steps = self.function(function).split(&first).skip(1);
        let step = |step: &'static str| {
            let name = step.split(|c: char| !c.is_alphanumeric()).next().unwrap();
            (name, self.calls(step.split(&rest).next().unwrap()))
        };
        steps.map(step).collect()
    }
}

/// The same steps, but for those that are not modelled.
fn same(controller: Vec<(&str, Vec<&str>)>, model: &[(&str, Vec<&str>)], without: &[&str]) {
    assert!(!model.is_empty() && model.iter().any(|(_, calls)| calls.len() > 1), "nothing was read: {model:?}");
    let (left_out, modelled): (Vec<_>, Vec<_>) = controller.into_iter().partition(|(step, _)| without.contains(step));
    assert_eq!(left_out.len(), without.len(), "no step of that name");
    assert_eq!(modelled, model, "left the controller's calls, right the model's");
}

#[test]
fn the_sandbox_is_changed_by_the_same_calls() {
    let controller = Side {
        text: include_str!("../../controller/change.rs"),
        words: &[
            (".get_opt(", "look at the lease"),
            ("board.changed(", "forget what was seen"),
            ("client.create_sandbox(", "create"),
            ("client.sandbox(", "look"),
            ("client.set(", "set"),
            ("client.start_sandbox(", "start"),
            ("client.stop_sandbox(", "stop"),
            ("client.archive_sandbox(", "archive"),
            ("client.recover_sandbox(", "recover"),
            ("board.set_recovered(", "remember"),
            ("tidy_at_the_end(", "tidy"),
            ("client.delete_sandbox(", "delete"),
        ],
    };
    let model = Side {
        text: include_str!("change.rs"),
        words: &[
            ("self.kube.lease.as_ref()", "look at the lease"),
            (".seen = None", "forget what was seen"),
            ("self.call(CREATE", "create"),
            ("self.sandbox(", "look"),
            ("self.set(", "set"),
            ("Change::Start", "start"),
            ("Change::Stop", "stop"),
            ("Change::Archive", "archive"),
            ("Change::Recover", "recover"),
            (".recovered = true", "remember"),
            ("self.tidy_at_the_end(", "tidy"),
            ("Change::Delete)", "delete"),
        ],
    };
    same(controller.steps("change", 8), &model.steps("change", 12), &[]);
    let all = controller.text.matches("client.").count() - controller.text.matches("client.keep_awake(").count();
    let known = controller.words.iter().filter(|(word, _)| word.starts_with("client."));
    let known: usize = known.map(|(word, _)| controller.text.matches(word).count()).sum();
    assert_eq!(all, known, "a call to Daytona that is not modelled");
}

#[test]
fn a_place_for_commands_is_made_and_looked_at_by_the_same_calls() {
    let controller = Side {
        text: include_str!("../../controller/lease.rs"),
        words: &[
            ("directories(toolbox)", "directories"),
            ("set_up(", "set up"),
            ("open_session(", "open"),
            (" mark(toolbox", "mark"),
            ("session_lives(", "it lives"),
            ("workspace.check(", "check"),
            ("workspace.sweep(", "sweep"),
            ("Error::DeadSession", "it is dead"),
            ("toolbox.delete_session(", "delete"),
        ],
    };
    let model = Side {
        text: include_str!("change.rs"),
        words: &[
            ("\"ask for the directories\"", "directories"),
            ("self.set_up(", "set up"),
            ("self.open_session(", "open"),
            ("machine.mark(", "mark"),
            ("session_lives(", "it lives"),
            ("machine.has_mark(", "check"),
            ("machine.sweep(", "sweep"),
            ("Halt::DeadSession", "it is dead"),
            ("self.delete_session(", "delete"),
        ],
    };
    same(controller.steps("in_session", 8), &model.steps("in_session", 12), &["SyncFiles"]);
    let words: Words =
        &[("toolbox.delete_session(", "delete"), ("toolbox.create_session(", "create"), ("probe(toolbox", "probe")];
    let controller = Side { text: include_str!("../../controller/prepare.rs"), words };
    let words: Words =
        &[("self.delete_session(", "delete"), ("\"open the session\"", "create"), ("self.probe(", "probe")];
    let model = Side { words, ..model };
    let calls = controller.calls(controller.function("open_session"));
    assert_eq!(calls, ["delete", "create", "probe"]);
    assert_eq!(calls, model.calls(model.function("open_session")));
}

#[test]
fn an_attempt_is_made_awaited_and_ended_by_the_same_calls() {
    let controller = Side {
        text: include_str!("../../controller/launch.rs"),
        words: &[
            ("attempts.sent(", "was it sent"),
            ("return fence(", "fence"),
            ("toolbox.upload(", "upload"),
            ("attempts.refused(", "refused"),
            ("attempts.sending(", "sending"),
            ("begin_wait(", "wait"),
            ("toolbox.submit(", "feed"),
            ("attempts.accepted(", "accepted"),
            (" suspect(", "suspect"),
            ("board.take_collected(", "take what is to be cleared"),
            ("board.collected(", "put it back"),
            ("workspace.fence(", "fence"),
            ("workspace.kill(", "kill"),
            ("understood(", "understand"),
            ("attempts.answered(", "answered"),
            ("attempts.survived(", "survived"),
            ("attempts.ended(", "ended"),
        ],
    };
    let model = Side {
        text: include_str!("launch.rs"),
        words: &[
            ("memory.sent(", "was it sent"),
            ("self.fence(", "fence"),
            ("\"upload the command's files\"", "upload"),
            ("refused(self)", "refused"),
            ("sent.refused = Some(\"refused\".to_owned());\n                }\n            }\n        }", "refused"),
            ("memory.sending(", "sending"),
            ("self.begin_wait(", "wait"),
            ("\"feed the session\"", "feed"),
            ("sent.command_id = ", "accepted"),
            ("self.suspect(", "suspect"),
            ("mem::take(&mut self.memory.board(&lease).collected)", "take what is to be cleared"),
            ("collected.extend(", "put it back"),
            ("machine.fence(", "fence"),
            ("machine.kill(", "kill"),
            ("self.understood(", "understand"),
            ("memory.answered(", "answered"),
            ("mut self.memory.entry(&uid, &attempt).sent.survived", "survived"),
            ("memory.ended(", "ended"),
        ],
    };
    for (theirs, ours) in [("submit", "submit"), ("once", "wait_once"), ("fence", "fence"), ("kill", "kill")] {
        let calls = controller.calls(controller.function(theirs));
        assert!(calls.len() > 2, "nothing was read of {theirs}: {calls:?}");
        assert_eq!(calls, model.calls(model.function(ours)), "left the controller's {theirs}, right the model's");
    }
}
