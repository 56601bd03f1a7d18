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

/// A script and its input may be long; as measured, 100 MB are taken.
#[tokio::test]
async fn large_files_go_at_once_and_come_back_in_pieces() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    let long: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let large: Vec<u8> = (0..=250).cycle().take(65 << 20).collect();
    let parts: [(&str, Option<&str>, &[u8]); 6] = [
        ("files[0].path", None, b"base/in/script"),
        ("files[0].file", Some("script"), &long),
        ("files[1].path", None, b"base/in/stdin"),
        ("files[1].file", Some("stdin"), &long),
        ("files[2].path", None, b"base/large"),
        ("files[2].file", Some("large"), &large),
    ];
    let stored = upload(&sandbox, "/files/bulk-upload", &parts).await;
    assert_eq!(stored.status, 200, "{}", stored.text());
    assert_eq!(stored.json()["files"][2], json!({ "path": "base/large", "bytes": large.len() }));
    let modes = sandbox.execute("stat -c '%a' base base/in base/in/script base/large").await.1;
    assert_eq!(modes, "755\n755\n644\n644\n");
    assert_eq!(sandbox.execute("cmp base/in/script base/in/stdin; wc -c <base/large").await.1.trim(), "68157440");

    let part = async |path: &str, range: &str| {
        let request = sandbox.request(Method::GET, &format!("/files/download?path={path}"));
        let part = ask(request.header("Range", range)).await;
        let range = part.headers.get("content-range").map(|value| value.to_str().unwrap().to_owned());
        (part.status, range.unwrap_or_default(), part.bytes)
    };
    let total = large.len();
    let tail = part("base/large", "bytes=-1000").await;
    assert_eq!((tail.0, tail.1), (206, format!("bytes {}-{}/{total}", total - 1000, total - 1)));
    assert_eq!(tail.2, large[total - 1000..]);
    let middle = part("base/large", &format!("bytes={}-{}", 1 << 20, (1 << 20) + 4095)).await;
    assert_eq!((middle.0, middle.2.as_slice()), (206, &large[1 << 20..(1 << 20) + 4096]));
    let rest = part("base/in/script", "bytes=1048570-").await;
    assert_eq!((rest.0, rest.2.as_slice()), (206, &long[1_048_570..]));
    let beyond = part("base/in/script", "bytes=1048576-").await;
    assert_eq!((beyond.0, beyond.1.as_str()), (416, "bytes */1048576"));
    let malformed = part("base/in/script", "bytes=4-2").await;
    assert_eq!((malformed.0, malformed.2.as_slice()), (416, b"invalid range\n".as_slice()));
    sandbox.execute(": >base/empty").await;
    assert_eq!(part("base/empty", "bytes=0-").await, (200, String::new(), Vec::new()), "of nothing all is given");
    assert_eq!(part("base/empty", "bytes=-9").await, (206, "bytes 0--1/0".to_owned(), Vec::new()));
    // A file that grew is replaced whole, and keeps the mode that it was given.
    sandbox.execute("chmod 600 base/in/script").await;
    let short: [(&str, Option<&str>, &[u8]); 2] =
        [("files[0].path", None, b"base/in/script"), ("files[0].file", Some("script"), b"short")];
    assert_eq!(upload(&sandbox, "/files/bulk-upload", &short).await.status, 200);
    assert_eq!(sandbox.execute("cat base/in/script; stat -c ' %a' base/in/script").await.1, "short 600\n");
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

#[tokio::test]
async fn a_file_is_described_in_full() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.execute("mkdir -m 1777 d; echo x >f; chmod 640 f; touch -d '2026-01-02T03:04:05.6Z' f").await;
    let ids = sandbox.execute("printf '%s %s' $(id -u) $(id -g)").await.1;
    let (owner, group) = ids.split_once(' ').unwrap();
    let wanted = json!({
        "name": "f", "size": 2, "mode": "-rw-r-----", "modTime": "2026-01-02 03:04:05.6 +0000 UTC",
        "modifiedAt": "2026-01-02T03:04:05.6Z", "isDir": false, "owner": owner, "group": group, "permissions": "0640",
    });
    assert_eq!(sandbox.get("/files/info?path=f").await.json(), wanted);
    assert_eq!(sandbox.get("/files/info?path=d").await.json()["mode"], "dtrwxrwxrwx");
    assert_eq!(sandbox.get("/files/info?path=.").await.json()["name"], ".");
    sandbox.execute("ln -s f l; ln -s nowhere n").await;
    let list = sandbox.get("/files").await.json();
    let names: Vec<_> = list.as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["d", "f", "l"], "sorted, and without the link to nowhere");
    assert_eq!(sandbox.get("/files/info?path=n").await.status, 404);
    assert_eq!(sandbox.call(Method::DELETE, "/files?path=n", Value::Null).await.status, 404);
    assert_eq!(sandbox.get("/files?path=f").await.status, 400);
    assert_eq!(sandbox.get("/files?path=none").await.status, 404);
}

#[tokio::test]
async fn modes_and_owners_can_be_set_by_number_and_by_name() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.execute("touch f").await;
    let set = async |query: &str| {
        let answer = sandbox.post(&format!("/files/permissions?path={query}"), Value::Null).await;
        assert!(answer.bytes.is_empty());
        answer.status
    };
    assert_eq!(set("f&mode=4711").await, 200);
    assert_eq!(sandbox.execute("stat -c %a f").await.1, "711\n", "set-id bits are ignored");
    let own = sandbox.execute("printf 'owner=%s&group=%s' $(id -u) $(id -g)").await.1;
    let by_name = sandbox.execute("printf 'owner=%s&group=%s' $(id -un) $(id -gn)").await.1;
    assert_eq!((set(&format!("f&{own}")).await, set(&format!("f&{by_name}")).await), (200, 200));
    let given_away = set("f&owner=1234&group=4321").await;
    let owners = sandbox.execute("stat -c %u:%g f; id -u").await.1;
    let wanted = if owners.ends_with("\n0\n") { (200, "1234:4321\n0\n") } else { (400, owners.as_str()) };
    assert_eq!((given_away, owners.as_str()), wanted, "only root can give a file away");
    for refused in ["f&mode=9", "f&owner=no-such-user", "f&group=no-such-group", ""] {
        assert_eq!(set(refused).await, 400, "{refused}");
    }
    assert_eq!(set("none&mode=600").await, 404);
}

#[tokio::test]
async fn a_move_replaces_nothing() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.execute("echo a >a; echo b >b; mkdir d").await;
    let go = async |query: &str| sandbox.post(&format!("/files/move?{query}"), Value::Null).await.status;
    assert_eq!(go("source=a&destination=b").await, 409);
    assert_eq!(go("source=a&destination=d").await, 409);
    assert_eq!(go("source=none&destination=b").await, 404);
    assert_eq!(go("source=a&destination=none/a").await, 404);
    for incomplete in ["source=a", "destination=a", ""] {
        assert_eq!(go(incomplete).await, 400);
    }
    assert_eq!(go("source=a&destination=d/c").await, 200);
    assert_eq!(sandbox.execute("cat d/c b; ls").await.1, "a\nb\nb\nd\n");
}

#[tokio::test]
async fn refused_files_say_why_only_in_bulk() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.execute("mkdir d; echo x >f; ln -s /nowhere/at/all broken").await;
    assert_eq!(upload(&sandbox, "/files/upload?path=d", &[("file", Some("x"), b"x")]).await.status, 400);
    assert_eq!(upload(&sandbox, "/files/upload?path=x", &[("other", Some("x"), b"x")]).await.status, 400);
    assert_eq!(upload(&sandbox, "/files/upload", &[("file", Some("x"), b"x")]).await.status, 400);
    let raw = sandbox.request(Method::POST, "/files/upload?path=x").body("raw");
    assert_eq!(ask(raw).await.status, 400);
    assert_eq!(upload(&sandbox, "/files/upload?path=p/x", &[("file", Some("x"), b"x")]).await.status, 200);
    assert_eq!(sandbox.execute("stat -c %a p p/x").await.1, "750\n644\n");

    let refused = sandbox.post("/files/bulk-upload", json!({})).await;
    assert_eq!((refused.status, refused.json()), (400, json!({ "errors": ["invalid multipart form"] })));
    let parts: [(&str, Option<&str>, &[u8]); 5] = [
        ("files[0].path", None, b" "),
        ("files[0].file", Some("x"), b"x"),
        ("files[1].path", None, b"f/x"),
        ("files[1].file", Some("x"), b"x"),
        ("files[2].file", Some("x"), b"x"),
    ];
    let refused = upload(&sandbox, "/files/bulk-upload", &parts).await;
    let json = refused.json();
    let errors: Vec<_> = json["errors"].as_array().unwrap().iter().map(|error| error.as_str().unwrap()).collect();
    assert_eq!((refused.status, &json["files"]), (400, &Value::Null));
    assert_eq!(errors[..2], ["path[0]: empty path", "file[0]: missing .path metadata"]);
    assert!(errors[2].starts_with("f/x: ") && errors[3] == "file[2]: missing .path metadata", "{errors:?}");

    let refused = sandbox.post("/files/bulk-download", json!({ "paths": [] })).await;
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"].as_str().unwrap().starts_with("request body must be"));
    let paths = json!({ "paths": ["f", "none", "d", ""] });
    let down = sandbox.post("/files/bulk-download", paths).await;
    assert_eq!(down.headers["content-type"], "multipart/form-data; boundary=DAYTONA-FILE-BOUNDARY");
    let text = down.text();
    let codes: Vec<_> = text.split("\"code\":\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(codes, ["FILE_NOT_FOUND", "INVALID_FILE_PATH", "INVALID_FILE_PATH"]);
    assert!(text.contains("name=\"error\"; filename=\"none\"; filename*=utf-8''none\r\n"), "{text}");
}

#[tokio::test]
async fn names_and_contents_are_searched_and_replaced() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.execute("mkdir -p p/q; printf 'one\\ntwo\\n' >p/a.txt; echo two >p/q/b.txt; printf 'two\\0' >p/c").await;
    let found = sandbox.get("/files/search?path=p&pattern=*.txt").await.json();
    assert_eq!(found, json!({ "files": ["p/a.txt", "p/q/b.txt"] }));
    let found = sandbox.get("/files/find?path=p&pattern=two").await.json();
    let line = |file: &str, line: u32| json!({ "file": file, "line": line, "content": "two" });
    assert_eq!(found, json!([line("p/a.txt", 2), line("p/q/b.txt", 1)]), "what is no text is left out");
    let body = json!({ "files": ["p/a.txt", "none"], "pattern": "two", "newValue": "three" });
    let replaced = sandbox.post("/files/replace", body).await.json();
    assert_eq!(replaced[0], json!({ "file": "p/a.txt", "success": true }));
    let error = "open none: no such file or directory";
    assert_eq!(replaced[1], json!({ "file": "none", "success": false, "error": error }));
    assert_eq!(sandbox.execute("cat p/a.txt").await.1, "one\nthree\n");
    for path in ["/files/search?path=p", "/files/find?pattern=x"] {
        assert_eq!(sandbox.get(path).await.status, 400);
    }
    assert_eq!(sandbox.get("/files/search?path=none&pattern=*").await.json(), json!({ "files": [] }));
    assert_eq!(sandbox.post("/files/replace", json!({})).await.status, 400);
}

/// Without a path the home directory itself would be meant.
#[tokio::test]
async fn nothing_is_removed_where_no_path_is_given() {
    let server = Server::bash().await;
    let sandbox = server.sandbox().await;
    sandbox.execute("touch f").await;
    assert_eq!(sandbox.call(Method::DELETE, "/files?recursive=true", Value::Null).await.status, 400);
    assert_eq!(sandbox.execute("ls").await.1, "f\n");
}
