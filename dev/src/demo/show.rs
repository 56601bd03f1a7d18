//! Each kubectl call as a reader would type it, and what kubectl prints.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::AbortHandle;

use super::Error;
use crate::kubectl::Kubectl;

/// Where calls and their output are shown.
pub(super) struct Screen {
    pub(super) kubectl: Kubectl,
    /// What a reader types before the arguments.
    pub(super) prompt: String,
}

/// A watch that prints what comes until this is dropped.
pub(super) struct Watch(AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Screen {
    /// Shows the call, runs it, shows what it printed.
    pub(super) async fn run(&self, arguments: &[&str]) -> Result<(), Error> {
        println!("\n$ {} {}", self.prompt, typed(arguments));
        let output = self.kubectl.run(arguments).await?;
        print_block(&output.stderr);
        print_block(&output.stdout);
        Ok(())
    }

    /// Runs `kubectl describe …` and shows its events only: the rest is long.
    pub(super) async fn events(&self, arguments: &[&str]) -> Result<(), Error> {
        println!("\n$ {} {} | sed -n '/^Events/,$p'", self.prompt, typed(arguments));
        let output = self.kubectl.run(arguments).await?;
        let events: Vec<_> = output.stdout.lines().skip_while(|line| !line.starts_with("Events")).collect();
        print_block(&events.join("\n"));
        Ok(())
    }

    /// Shows the call, and line by line what it prints, in the background.
    pub(super) fn watch(&self, arguments: &[&str]) -> Result<Watch, Error> {
        println!("\n$ {} {} &", self.prompt, typed(arguments));
        let mut command = self.kubectl.tied(arguments)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| Error::File { path: self.kubectl.binary.clone(), source })?;
        let stdout = child.stdout.take();
        let task = tokio::spawn(async move {
            // Held, since the process ends with it.
            let _child = child;
            let Some(stdout) = stdout else { return };
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                println!("{line}");
            }
        });
        Ok(Watch(task.abort_handle()))
    }
}

/// Arguments quoted where a shell needs it.
fn typed(arguments: &[&str]) -> String {
    let quoted = arguments.iter().map(|argument| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:".contains(c);
        if argument.chars().all(plain) { (*argument).to_owned() } else { format!("'{argument}'") }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

fn print_block(text: &str) {
    let text = text.trim_end();
    if !text.is_empty() {
        println!("{text}");
    }
}
