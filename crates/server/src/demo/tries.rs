//! Which commands can a new user try next?

use std::path::Path;

use nerite_client::http;

use super::DemoOptions;

/// Three commands against the demo's server, and its page for browsers. Without one, against a server still to be started on `models`.
pub(super) async fn print(options: Option<&DemoOptions>, models: &Path) {
    println!("\nTo try:");
    let host = |url: &str| url.trim_start_matches("http://").to_owned();
    let (http, metrics, has_page) = if let Some(options) = options {
        (host(&options.http_url), host(&options.metrics_url), serves_page(&options.metrics_url).await)
    } else {
        // The path of this program, which need not be in PATH, and of the models, from any current directory.
        let program = std::env::current_exe().unwrap_or_else(|_| "nerite".into());
        println!("\n  {} serve --model-repository {}", word(&program), word(models));
        ("localhost:8000".to_owned(), "localhost:8002".to_owned(), true)
    };
    println!("{}", commands(&http, &metrics));
    if has_page {
        println!("\nOr open http://{metrics}/ in a browser: models, a form to try them, and plots.");
    }
}

/// Whether the page for browsers is at the metrics port. The operator may have switched it off by a variable. Then there is an empty text.
async fn serves_page(metrics_url: &str) -> bool {
    let Ok(client) = http::Client::new(metrics_url) else { return false };
    client.page("/").await.is_ok_and(|text| !text.is_empty())
}

fn commands(http: &str, metrics: &str) -> String {
    let (ones, twos) = (["1"; 16].join(","), ["2"; 16].join(","));
    format!(
        r#"
  curl {http}/v2/models/simple/infer -d '{{"inputs":[
    {{"name":"INPUT0","datatype":"INT32","shape":[1,16],"data":[{ones}]}},
    {{"name":"INPUT1","datatype":"INT32","shape":[1,16],"data":[{twos}]}}]}}'

  python3 - <<'END'    # needs: pip install tritonclient[http]
import numpy as np, tritonclient.http as triton, tritonclient.utils.shared_memory as shm
client = triton.InferenceServerClient("{http}")
region = shm.create_shared_memory_region("sums", "/sums", 192)
shm.set_shared_memory_region(region, [np.arange(16, dtype=np.int32), np.ones(16, dtype=np.int32)])
client.register_system_shared_memory("sums", "/sums", 192)
inputs = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
inputs[0].set_shared_memory("sums", 64, 0)
inputs[1].set_shared_memory("sums", 64, 64)
output = triton.InferRequestedOutput("OUTPUT0")
output.set_shared_memory("sums", 64, 128)
client.infer("simple", inputs, outputs=[output])
print(shm.get_contents_as_numpy(region, np.int32, [1, 16], 128))
client.unregister_system_shared_memory("sums")
shm.destroy_shared_memory_region(region)
END

  curl {metrics}/metrics"#
    )
}

/// A path as one word of a shell.
fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+@:,".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_words() {
        assert_eq!(word(Path::new("/opt/nerite-1.0/nerite")), "/opt/nerite-1.0/nerite");
        assert_eq!(word(Path::new("/my models/it's")), r"'/my models/it'\''s'");
    }

    #[test]
    fn the_commands_name_the_ports() {
        let text = commands("127.0.0.1:8000", "127.0.0.1:8002");
        assert!(text.contains("curl 127.0.0.1:8000/v2") && text.contains("curl 127.0.0.1:8002/metrics"));
        assert!(text.contains(r#"{"inputs":["#));
    }
}
