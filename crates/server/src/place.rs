//! Where is this server on the disk, as a program of its own or as a library in another program?

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The file of the library, if the server is a library in another program.
static LIBRARY: OnceLock<PathBuf> = OnceLock::new();

/// Names the program `nerite`, if it is not beside the library.
const PROGRAM_VARIABLE: &str = "NERITE_PROGRAM";

/// Notes that the server is a library in another program.
pub fn in_library() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let own = (in_library as *const ()).addr();
    LIBRARY.get_or_init(|| file_at(&maps, own).unwrap_or_default());
}

/// The directory of the program or of the library.
pub fn directory() -> PathBuf {
    let file = LIBRARY.get().cloned().unwrap_or_else(|| std::env::current_exe().unwrap_or_default());
    file.parent().map(Path::to_owned).unwrap_or_default()
}

/// The program that is started for an instance in a process of its own. This is the running file, even if it was replaced on disk. For a library it
/// is the program of the same version that was installed with it.
pub fn program() -> PathBuf {
    let Some(library) = LIBRARY.get() else { return PathBuf::from("/proc/self/exe") };
    let named = std::env::var_os(PROGRAM_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    named.unwrap_or_else(|| beside(library, Path::is_file))
}

/// The program beside the library, or in the folder `bin` beside the folder `lib` that the library lies in, or one folder deeper.
fn beside(library: &Path, is_there: impl Fn(&Path) -> bool) -> PathBuf {
    let folders = library.ancestors().skip(1).take(3);
    let mut candidates = folders.flat_map(|folder| [folder.join("nerite"), folder.join("bin/nerite")]);
    // Otherwise the system looks for the program in PATH.
    candidates.find(|path| is_there(path)).unwrap_or_else(|| PathBuf::from("nerite"))
}

/// The file that is mapped at an address, by what proc(5) calls `maps`.
fn file_at(maps: &str, address: usize) -> Option<PathBuf> {
    let holds = |range: &str| {
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(start)?..number(end)?).contains(&address))
    };
    let line = maps.lines().find(|line| line.split(' ').next().and_then(holds) == Some(true))?;
    // Five fields, then spaces up to the path, which may have spaces itself.
    let path = line.get(line.find('/')?..)?;
    Some(PathBuf::from(path.strip_suffix(" (deleted)").unwrap_or(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_at_an_address_is_found() {
        let maps = "1000-2000 r--p 00000000 fe:00 12                     /usr/lib/a b.so\n\
                    2000-3000 r-xp 00001000 fe:00 12                     /usr/lib/c.so (deleted)\n\
                    3000-4000 rw-p 00000000 00:00 0\n";
        assert_eq!(file_at(maps, 0x1fff), Some("/usr/lib/a b.so".into()));
        assert_eq!(file_at(maps, 0x2000), Some("/usr/lib/c.so".into()));
        assert_eq!(file_at(maps, 0x3000), None);
        assert_eq!(file_at(maps, 0x4000), None);
        let own = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        assert_eq!(file_at(&own, (directory as *const ()).addr()), std::env::current_exe().ok());
    }

    #[test]
    fn the_program_lies_beside_the_library_or_where_packages_put_it() {
        let found = |library: &str, there: &str| beside(Path::new(library), |path| path == Path::new(there));
        assert_eq!(found("/t/debug/libtritonserver.so", "/t/debug/nerite"), Path::new("/t/debug/nerite"));
        assert_eq!(found("/usr/lib/nerite/libtritonserver.so", "/usr/bin/nerite"), Path::new("/usr/bin/nerite"));
        assert_eq!(found("/opt/n/lib/libtritonserver.so", "/opt/n/bin/nerite"), Path::new("/opt/n/bin/nerite"));
        assert_eq!(found("/opt/libtritonserver.so", "/usr/bin/nerite"), Path::new("nerite"));
    }
}
