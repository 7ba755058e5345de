//! Can the server open what clients have on GPUs?

use super::facts::{Card, Facts, Gpu, Library, Process, Visible};
use super::verdict::{Verdict, fails, holds, note};

/// A GPU, or an instance of one, by its UUID.
type Uuids = Vec<String>;

pub(super) fn judge(facts: &Facts) -> Vec<Verdict> {
    let (gpu, server) = (&facts.gpu, facts.server());
    let client = facts.client.as_ref().and_then(|client| client.process.as_ref());
    let wanted = facts.client.as_ref().is_some_and(|client| client.maps_cuda)
        || names_gpus(server.visible.as_ref())
        || names_gpus(client.and_then(|client| client.visible.as_ref()));
    let mut verdicts = vec![driver(gpu, wanted)];
    if gpu.driver.is_none() {
        return verdicts;
    }
    verdicts.extend(mismatch(gpu));
    verdicts.push(cards(gpu, wanted));
    verdicts.extend(mig(&gpu.cards));
    verdicts.extend(client.and_then(|client| shared(&gpu.cards, server, client)));
    verdicts
}

/// Whether somebody named GPUs for a process.
fn names_gpus(visible: Option<&Visible>) -> bool {
    let names = |list: &Option<String>| {
        list.as_deref().is_some_and(|list| !matches!(list.trim(), "" | "-1" | "none" | "void" | "NoDevFiles"))
    };
    visible.is_some_and(|visible| names(&visible.cuda) || names(&visible.nvidia))
}

fn driver(gpu: &Gpu, wanted: bool) -> Verdict {
    let check = "gpu driver";
    match (&gpu.driver, &gpu.library) {
        (Some(version), Some(library)) => {
            holds(check, format!("kernel module {version}, library {}", library.path.display()))
        }
        (Some(version), None) => fails(
            check,
            format!("kernel module {version} is there, libcuda.so.1 is not: CUDA regions are refused"),
            "install the driver's libraries; in a container `--gpus all` and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
        (None, _) if wanted => fails(
            check,
            "no GPU: there is no /proc/driver/nvidia, and the client or the server was given GPUs by name",
            "load the nvidia module; in a container `docker run --gpus all` with the NVIDIA container toolkit",
        ),
        (None, _) => holds(check, "no GPU, and nobody asks for one: CUDA regions are refused, all else works"),
    }
}

fn mismatch(gpu: &Gpu) -> Option<Verdict> {
    let (Some(driver), Some(Library { path, version: Some(library) })) = (&gpu.driver, &gpu.library) else {
        return None;
    };
    if driver == library {
        return None;
    }
    let check = "driver versions";
    let found = format!("kernel module {driver}, library {library} ({})", path.display());
    if path.components().any(|part| part.as_os_str() == "compat") {
        return Some(note(check, format!("{found}: CUDA's forward compatibility"), ""));
    }
    let cure = "they must be the same: reboot or reload the module after an update, and restart containers that hold the old \
                library";
    Some(fails(check, found, cure))
}

fn cards(gpu: &Gpu, wanted: bool) -> Verdict {
    let check = "gpus";
    if gpu.cards.is_empty() {
        let found = "the driver is there and shows no GPU";
        let cure = "`nvidia-smi -L` on the host; in a container `--gpus all`";
        return if wanted {
            fails(check, format!("{found}, wanted at least one"), cure)
        } else {
            note(check, found, cure)
        };
    }
    let names: Vec<_> = gpu.cards.iter().map(|card| format!("{} {}", card.model, card.uuid)).collect();
    holds(check, names.join(", "))
}

fn mig(cards: &[Card]) -> Option<Verdict> {
    let split: Vec<_> = cards.iter().filter(|card| card.mig_instances > 0).collect();
    let first = split.first()?;
    let found = format!("{} is split into {} instances", first.uuid, first.mig_instances);
    let rest = if split.len() > 1 { format!(", and {} more GPUs are", split.len() - 1) } else { String::new() };
    let cure = "CUDA opens handles only within one GPU instance: give client and server the same MIG UUID in CUDA_VISIBLE_DEVICES";
    Some(note("mig", found + &rest, cure))
}

/// Whether the two see the same GPUs under the same numbers.
fn shared(cards: &[Card], server: &Process, client: &Process) -> Option<Verdict> {
    if cards.is_empty() {
        return None;
    }
    let check = "client gpus";
    let (Some(ours), Some(theirs)) = (&server.visible, &client.visible) else {
        return Some(note(check, "what the two were told of GPUs cannot be seen from here", "run this as root"));
    };
    let (ours, theirs) = (visible(cards, ours), visible(cards, theirs));
    let list = |uuids: &Uuids| if uuids.is_empty() { "none".to_owned() } else { uuids.join(" ") };
    let both = format!("the client sees {}, the server {}", list(&theirs), list(&ours));
    let common = theirs.iter().filter(|uuid| ours.contains(uuid)).count();
    if ours == theirs && common > 0 {
        return Some(holds(check, format!("both see {}", list(&ours))));
    }
    if common == 0 {
        let cure = "give both the same GPU by UUID in CUDA_VISIBLE_DEVICES, or in `--gpus device=…`";
        return Some(fails(check, format!("{both}: memory of one's GPUs cannot be opened by the other"), cure));
    }
    let cure = "device numbers differ between the two; register with the number that the server gives the GPU";
    Some(note(check, both, cure))
}

/// The GPUs a process sees, in its own order. The container's runtime chooses first, and CUDA among those.
fn visible(cards: &[Card], visible: &Visible) -> Uuids {
    let all: Uuids = cards.iter().map(|card| card.uuid.clone()).collect();
    let given = match visible.nvidia.as_deref().map(str::trim) {
        None | Some("" | "all") => all,
        Some("none" | "void") => Uuids::new(),
        // Within the container only the chosen cards are visible, and the numbers in this variable are the host's.
        Some(list) => choose(&all, list, true),
    };
    match visible.cuda.as_deref() {
        None => given,
        Some(list) => choose(&given, list, false),
    }
}

/// CUDA reads the list up to the first word that names no GPU.
fn choose(from: &Uuids, list: &str, all_if_strange: bool) -> Uuids {
    let mut chosen = Uuids::new();
    for word in list.split(',').map(str::trim) {
        let found = match word.parse::<usize>() {
            Ok(number) => from.get(number).cloned(),
            Err(_) if word.starts_with("MIG-") => Some(word.to_owned()),
            Err(_) if word.is_empty() => None,
            Err(_) => from.iter().find(|uuid| uuid.starts_with(word)).cloned(),
        };
        match found {
            Some(uuid) => chosen.push(uuid),
            None if all_if_strange => return from.clone(),
            None => break,
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::super::verdict::troubles;
    use super::*;

    fn card(uuid: &str) -> Card {
        Card { model: "H200".into(), uuid: uuid.into(), mig_instances: 0 }
    }

    fn gpu(driver: Option<&str>, library: Option<(&str, &str)>, cards: Vec<Card>) -> Gpu {
        let library = library.map(|(path, version)| Library { path: path.into(), version: Some(version.into()) });
        Gpu { driver: driver.map(str::to_owned), library, cards }
    }

    #[track_caller]
    fn check(gpu: &Gpu, wanted: bool, expect: &[&str]) {
        let mut verdicts = vec![driver(gpu, wanted)];
        verdicts.extend(mismatch(gpu));
        verdicts.push(cards(gpu, wanted));
        verdicts.extend(mig(&gpu.cards));
        let found = troubles(&verdicts);
        assert_eq!(found.len(), expect.len(), "{found:#?}");
        assert!(found.iter().zip(expect).all(|(found, expect)| found.starts_with(expect)), "{found:#?}");
    }

    #[test]
    fn a_driver_and_its_library_are_of_one_version_and_there_is_a_gpu() {
        let lib = Some(("/usr/lib/libcuda.so.550.1", "550.1"));
        check(&gpu(Some("550.1"), lib, vec![card("GPU-a")]), true, &[]);
        check(
            &gpu(Some("535.2"), lib, vec![card("GPU-a")]),
            true,
            &[
                "FAIL driver versions: kernel module 535.2, library 550.1 (/usr/lib/libcuda.so.550.1) => they must be the same",
            ],
        );
        let compat = Some(("/usr/local/cuda/compat/libcuda.so.550.1", "550.1"));
        check(&gpu(Some("535.2"), compat, vec![card("GPU-a")]), true, &["note driver versions"]);
        check(
            &gpu(Some("550.1"), None, vec![card("GPU-a")]),
            false,
            &["FAIL gpu driver: kernel module 550.1 is there, libcuda.so.1 is not"],
        );
        check(&gpu(Some("550.1"), lib, vec![]), true, &["FAIL gpus: the driver is there and shows no GPU, wanted"]);
        check(&gpu(Some("550.1"), lib, vec![]), false, &["note gpus"]);
        let split = Card { mig_instances: 2, ..card("GPU-a") };
        check(
            &gpu(Some("550.1"), lib, vec![split]),
            true,
            &["note mig: GPU-a is split into 2 instances => CUDA opens"],
        );
    }

    #[test]
    fn no_gpu_is_a_fault_only_where_one_was_asked_for() {
        let none = Gpu::default();
        assert_eq!(troubles(&[driver(&none, false)]), Vec::<String>::new());
        assert!(
            troubles(&[driver(&none, true)])[0].starts_with("FAIL gpu driver: no GPU: there is no /proc/driver/nvidia")
        );
        let sees_gpus = |cuda: Option<&str>, nvidia: Option<&str>| {
            names_gpus(Some(&Visible { cuda: cuda.map(str::to_owned), nvidia: nvidia.map(str::to_owned) }))
        };
        assert!(sees_gpus(Some("0"), None) && sees_gpus(None, Some("all")));
        assert!(
            !sees_gpus(None, None)
                && !sees_gpus(Some(""), Some("void"))
                && !sees_gpus(Some("-1"), Some("none"))
                && !names_gpus(None)
        );
    }

    #[track_caller]
    fn check_visible(cuda: Option<&str>, nvidia: Option<&str>, expect: &[&str]) {
        let seen = Visible { cuda: cuda.map(str::to_owned), nvidia: nvidia.map(str::to_owned) };
        assert_eq!(visible(&[card("GPU-a1"), card("GPU-b2"), card("GPU-c3")], &seen), expect, "{seen:?}");
    }

    #[test]
    fn a_process_sees_what_its_container_and_cuda_were_told() {
        check_visible(None, None, &["GPU-a1", "GPU-b2", "GPU-c3"]);
        check_visible(Some("2,0"), None, &["GPU-c3", "GPU-a1"]);
        check_visible(Some("0,9,1"), None, &["GPU-a1"]);
        check_visible(Some("GPU-b,GPU-x"), None, &["GPU-b2"]);
        check_visible(Some(""), None, &[]);
        check_visible(Some("-1"), None, &[]);
        check_visible(Some("MIG-1"), None, &["MIG-1"]);
        check_visible(None, Some("all"), &["GPU-a1", "GPU-b2", "GPU-c3"]);
        check_visible(None, Some("void"), &[]);
        check_visible(Some("0"), Some("GPU-b2,GPU-c3"), &["GPU-b2"]);
        check_visible(Some("0"), Some("7"), &["GPU-a1"]);
    }

    #[track_caller]
    fn check_shared(server: Option<&str>, client: Option<&str>, expect: &[&str]) {
        let process = |cuda: Option<&str>| Process {
            visible: Some(Visible { cuda: cuda.map(str::to_owned), nvidia: None }),
            ..Process::default()
        };
        let verdict = shared(&[card("GPU-a"), card("GPU-b")], &process(server), &process(client));
        let found = troubles(&verdict.into_iter().collect::<Vec<_>>());
        assert_eq!(found.len(), expect.len(), "{found:#?}");
        assert!(found.iter().zip(expect).all(|(found, expect)| found.starts_with(expect)), "{found:#?}");
    }

    #[test]
    fn client_and_server_see_the_same_gpus_in_the_same_order() {
        check_shared(None, None, &[]);
        check_shared(Some("1"), Some("GPU-b"), &[]);
        check_shared(
            Some("0"),
            Some("1"),
            &[
                "FAIL client gpus: the client sees GPU-b, the server GPU-a: memory of one's GPUs cannot be opened by the other",
            ],
        );
        check_shared(None, Some(""), &["FAIL client gpus: the client sees none, the server GPU-a GPU-b"]);
        check_shared(
            None,
            Some("1"),
            &["note client gpus: the client sees GPU-b, the server GPU-a GPU-b => device numbers"],
        );
        let unseen = shared(&[card("GPU-a")], &Process::default(), &Process::default());
        assert!(
            troubles(&unseen.into_iter().collect::<Vec<_>>())[0]
                .starts_with("note client gpus: what the two were told")
        );
    }
}
