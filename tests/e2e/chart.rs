//! An apiserver accepts every object of the chart. What the account may do is shown by all other tests here: their
//! controllers run as it.

use std::time::Duration;

use dev::{
    control_plane::ControlPlane,
    install::{Release, workspace},
    kubectl,
    wait::until,
};
use serde_json::{Value, json};

/// How long the roles `view`, `edit` and `admin` may take to learn of ours.
const LIMIT: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread")]
async fn every_object_of_the_chart_is_accepted() {
    is_accepted(&crate::world::PLANE).await;
}

/// Every object that the chart renders, with its defaults and with everything set, passes a dry run on the server.
async fn is_accepted(plane: &ControlPlane) {
    let admin = plane.kubectl(None);
    // A dry run makes no namespace for the objects that come after it.
    for namespace in ["chart-system", "chart-blue"] {
        admin.run(&["create", "namespace", namespace]).await.unwrap();
    }
    let everything = json!({
        "watchNamespaces": ["chart-blue"],
        "daytonaApiUrl": "https://daytona.example/api=https://proxy.daytona.example",
        "allowApiUrls": ["https://other.example/api"],
        "credential": { "existingSecret": { "name": "daytona", "key": "token" } },
        "controllerKeyFor": "None",
        "credentialEscrow": "Disabled",
        "extraArgs": ["--log-json"],
        "image": { "repository": "images.example/daytona-controller", "tag": "1.2.3", "pullPolicy": "Always" },
        "imagePullSecrets": ["pull"],
        "serviceAccount": { "name": "someone", "annotations": { "example.com/role": "leases" } },
        "resources": { "limits": { "memory": "1Gi" } },
        "fullnameOverride": "sandboxes",
    });
    for (values, objects) in [(json!({}), 8), (everything, 10)] {
        let chart = workspace().join("charts/daytona-controller");
        let release = Release { chart: &chart, name: "robot", namespace: "chart-system", values: values.clone() };
        let items = release.render(plane.cluster()).await.unwrap();
        let call = ["apply", "--dry-run=server", "--validate=strict", "--output=name", "--filename=-"];
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        let output = admin.run_with_input(&call, &list.to_string()).await.unwrap();
        assert_eq!(output.stderr, "", "{values}");
        assert_eq!(output.stdout.lines().count(), objects, "{values}: {}", output.stdout);
        assert_eq!(items.len(), objects);
    }
    people_can_use_both_kinds(plane).await;
    for namespace in ["chart-system", "chart-blue"] {
        admin.run(&["delete", "namespace", namespace, "--wait=false"]).await.unwrap();
    }
}

/// The roles for people reach `view`, `edit` and `admin` by aggregation, and give no right on status.
async fn people_can_use_both_kinds(plane: &ControlPlane) {
    let chart = workspace().join("charts/daytona-controller");
    let release = Release {
        chart: &chart,
        name: "people",
        namespace: "chart-system",
        values: json!({ "watchNamespaces": ["chart-blue"] }),
    };
    let roles: Vec<Value> =
        release.render(plane.cluster()).await.unwrap().into_iter().filter(|o| o["kind"] == "ClusterRole").collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": roles });
    plane.kubectl(None).apply(&list.to_string()).await.unwrap();
    let blue = plane.kubectl(Some("chart-blue"));
    for (role, what, allowed) in [
        ("view", "list sandboxcommands.daytona-controller.dev", true),
        ("view", "create sandboxcommands.daytona-controller.dev", false),
        ("edit", "delete sandboxleases.daytona-controller.dev", true),
        ("edit", "patch sandboxcommands.daytona-controller.dev --subresource=status", false),
        ("admin", "create sandboxleases.daytona-controller.dev", true),
    ] {
        let user = format!("{role}-of-blue");
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": { "name": user },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
        });
        blue.apply(&binding.to_string()).await.unwrap();
        let mut call = vec!["auth", "can-i", "--as", &user];
        call.extend(what.split(' '));
        // Aggregation takes a moment.
        until(format!("{role} may {what}: {allowed}"), LIMIT, async || {
            let answer = match blue.run(&call).await {
                Ok(output) => output.stdout,
                // A no is an exit code of 1 as well.
                Err(kubectl::Error::Failed { stdout, .. }) => stdout,
                Err(error) => panic!("{error}"),
            };
            (answer.trim() == if allowed { "yes" } else { "no" }).then_some(())
        })
        .await
        .unwrap();
    }
    let call = ["delete", "--filename=-"];
    let admin = plane.kubectl(None);
    admin.run_with_input(&call, &list.to_string()).await.unwrap();
}
