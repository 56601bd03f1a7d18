//! Files in and out, and no way out of the sandbox.

use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Answer, Sandbox, Server, ask};

/// By hand: what a client sends is known to the byte.
fn form(parts: &[(&str, Option<&str>, &[u8])]) -> (String, Vec<u8>) {
    let mut body = Vec::new();
    for (name, file, content) in parts {
        let file = file.map_or_else(String::new, |file| format!("; filename=\"{file}\""));
        let head = format!("--xyz\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--xyz--\r\n");
    ("multipart/form-data; boundary=xyz".to_owned(), body)
}

async fn upload(sandbox: &Sandbox<'_>, path: &str, parts: &[(&str, Option<&str>, &[u8])]) -> Answer {
    let (kind, body) = form(parts);
    ask(sandbox.request(Method::POST, path).header("Content-Type", kind).body(body)).await
}

#[tokio::test]
async fn a_file_comes_back_as_it_went() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let content: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let answer = upload(&sandbox, "/files/upload?path=a/b", &[("file", Some("b"), &content)]).await;
    assert_eq!((answer.status, answer.bytes.len()), (200, 0));
    let back = sandbox.get("/files/download?path=a/b").await;
    assert_eq!((back.status, back.bytes == content), (200, true));
    let part = sandbox.request(Method::GET, "/files/download?path=a/b").header("Range", "bytes=10-19");
    let part = ask(part).await;
    assert_eq!((part.status, part.bytes), (206, content[10..20].to_vec()));
    assert_eq!(part.headers["content-range"], "bytes 10-19/100000");
    let info = sandbox.get("/files/info?path=a/b").await.json();
    assert_eq!((&info["size"], &info["isDir"]), (&json!(100_000), &json!(false)));
    assert_eq!(sandbox.execute("wc -c <a/b").await.1.trim(), "100000");
}

#[tokio::test]
async fn many_files_go_at_once_and_what_worked_stays() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let parts: [(&str, Option<&str>, &[u8]); 6] = [
        ("files[0].path", None, b"one"),
        ("files[0].file", Some("one"), b"1"),
        ("files[1].path", None, b"/etc/nope"),
        ("files[1].file", Some("nope"), b"2"),
        ("files[2].path", None, b"d/two"),
        ("files[2].file", Some("two"), b"22"),
    ];
    let good = upload(&sandbox, "/files/bulk-upload", &[parts[0], parts[1], parts[4], parts[5]]).await;
    assert_eq!(good.status, 200);
    assert_eq!(good.json()["files"], json!([{ "path": "one", "bytes": 1 }, { "path": "d/two", "bytes": 2 }]));
    let mixed = upload(&sandbox, "/files/bulk-upload", &parts).await;
    assert_eq!((mixed.status, mixed.json()["files"].as_array().unwrap().len()), (400, 2));
    assert_eq!(sandbox.execute("cat one d/two").await.1, "122");
    let paths = json!({ "paths": ["one", "missing", "/etc/passwd"] });
    let down = sandbox.post("/files/bulk-download", paths).await;
    let text = down.text();
    assert_eq!(down.status, 200);
    assert!(text.contains("name=\"file\"; filename=\"one\"") && text.contains("FILE_NOT_FOUND"), "{text}");
    assert!(text.contains("FILE_ACCESS_DENIED") && !text.contains("root:"), "{text}");
}

#[tokio::test]
async fn a_path_out_of_the_sandbox_is_refused() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.execute("ln -s /etc out; ln -s /etc/passwd leaf").await;
    for path in ["/etc/passwd", "../../../../../../../../etc/passwd", "out/passwd", "leaf", "out"] {
        for route in ["download", "info"] {
            let answer = sandbox.get(&format!("/files/{route}?path={path}")).await;
            assert_eq!((answer.status, answer.bytes.len()), (403, 0), "{route} {path}");
        }
        let target = format!("/files/upload?path={path}/x");
        assert_ne!(upload(&sandbox, &target, &[("file", Some("x"), b"x")]).await.status, 200, "{path}");
    }
    let removed = sandbox.call(Method::DELETE, "/files?path=/etc&recursive=true", Value::Null).await;
    assert_eq!(removed.status, 403);
    // The link itself is the sandbox's own.
    assert_eq!(sandbox.call(Method::DELETE, "/files?path=out", Value::Null).await.status, 204);
    assert!(std::path::Path::new("/etc/passwd").exists());
}

#[tokio::test]
async fn the_service_itself_does_not_write_through_a_link_out_of_the_sandbox() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let outside = tempfile::tempdir().unwrap();
    sandbox.execute(&format!("ln -s {} .daytona", outside.path().display())).await;
    assert_eq!(sandbox.post("/process/session", json!({ "sessionId": "s" })).await.status, 500);
    sandbox.execute("rm .daytona").await;
    sandbox.open("s").await;
    sandbox.execute(&format!("rm -r .daytona; ln -s {} .daytona", outside.path().display())).await;
    std::fs::create_dir_all(outside.path().join("sessions/s")).unwrap();
    assert_eq!(sandbox.exec("s", "true").await.status, 500);
    sandbox.close("s").await;
    let left = std::fs::read_dir(outside.path().join("sessions/s")).unwrap();
    assert_eq!(left.count(), 0, "made nothing there, and did not remove it");
}

#[tokio::test]
async fn folders_are_made_listed_and_removed() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    for _ in 0..2 {
        let made = sandbox.post("/files/folder?path=p/q&mode=0700", Value::Null).await;
        assert_eq!(made.status, 201);
    }
    assert_eq!(sandbox.get("/files/info?path=p/q").await.json()["permissions"], "0700");
    sandbox.execute("echo x >p/f").await;
    let list = sandbox.get("/files?path=p").await.json();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!(sandbox.get("/files/info?path=none").await.status, 404);
    let delete =
        async |query: &str| sandbox.call(Method::DELETE, &format!("/files?path={query}"), Value::Null).await.status;
    assert_eq!(delete("p").await, 400);
    assert_eq!(delete("p&recursive=true").await, 204);
    assert_eq!(delete("p").await, 404);
    assert_eq!(sandbox.get("/files/download?path=.").await.status, 400);
}
