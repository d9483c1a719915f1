package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const (
	host           = "/.host" // where the machine's root is while the container's is built
	prSetNoNewPriv = 38
	prCapBSetDrop  = 24
	lastCapability = 40
	sharedMemory   = "size=64m,mode=1777" // what container runtimes give; a Memory volume gives more
)

// Folders that start empty in each container. What of the machine's would be in them is none of a container's business.
var scratch = []string{"/tmp", "/run"}

// runInside is process 1 of the container: it builds the root in its own mount namespace and becomes the command.
func runInside() error {
	var wanted specification
	if err := json.NewDecoder(os.Stdin).Decode(&wanted); err != nil {
		return fmt.Errorf("specification: %w", err)
	}
	steps := []func(*specification) error{
		enterRoot, mountSystem, writeFiles, mountVolumes, expose, closeRoot, becomeUser,
	}
	for _, step := range steps {
		if err := step(&wanted); err != nil {
			return err
		}
	}
	return execute(&wanted)
}

// enterRoot makes an overlay over the machine's root the root: mount points and files can be made in it, and nothing
// of the machine changes, since the upper layer is in memory.
func enterRoot(wanted *specification) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := mountAt("tmpfs", wanted.Folder, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	root, err := overlay("/", wanted.Folder, "root")
	if err != nil {
		return err
	}
	old := filepath.Join(root, host)
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	if err := syscall.PivotRoot(root, old); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	return os.Chdir("/")
}

// overlay mounts a writable view of lower and returns where; the layers are in folder.
func overlay(lower, folder, name string) (string, error) {
	parts := map[string]string{}
	for _, part := range []string{"upper", "work", "merged"} {
		parts[part] = filepath.Join(folder, name+"-"+part)
		if err := os.Mkdir(parts[part], 0o755); err != nil {
			return "", err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, parts["upper"], parts["work"])
	return parts["merged"], mountAt("overlay", parts["merged"], "overlay", 0, options)
}

func mountAt(source, target, kind string, flags uintptr, options string) error {
	if err := syscall.Mount(source, target, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, target, err)
	}
	return nil
}

func mountSystem(wanted *specification) error {
	for _, folder := range scratch {
		if err := mountAt("tmpfs", folder, "tmpfs", 0, "mode=1777"); err != nil {
			return err
		}
	}
	if err := mountAt("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := bind(host+"/sys", "/sys", true); err != nil {
		return err
	}
	if err := mountAt("tmpfs", "/dev", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, device := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		target := "/dev/" + device
		if err := os.WriteFile(target, nil, 0o666); err != nil {
			return err
		}
		if err := bind(host+target, target, false); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"} {
		if err := os.Symlink("/proc/self/fd"+target, "/dev/"+name); err != nil {
			return err
		}
	}
	if err := os.Mkdir("/dev/shm", 0o1777); err != nil {
		return err
	}
	return mountAt("tmpfs", "/dev/shm", "tmpfs", 0, sharedMemory)
}

func bind(source, target string, readOnly bool) error {
	if err := mountAt(source, target, "", syscall.MS_BIND, ""); err != nil {
		return err
	}
	if !readOnly {
		return nil
	}
	return makeReadOnly(target)
}

func makeReadOnly(target string) error {
	return mountAt("", target, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, "")
}

// expose lets any user of the container read the folders that its image consists of. Those that the overlay does not
// show (another file system, or below a scratch folder or a volume) get an overlay of their own. A folder on the way that only its
// owner may pass, such as a home, lets everyone through in the overlay.
func expose(wanted *specification) error {
	// A folder before those in it: to make the inner one's mount point would hide that the outer one is not shown.
	for number, path := range slices.Sorted(slices.Values(wanted.Exposed)) {
		shown, err := isShown(wanted, path)
		if err != nil {
			return err
		}
		if !shown {
			layers := filepath.Join(host, wanted.Folder)
			merged, err := overlay(filepath.Join(host, path), layers, fmt.Sprintf("exposed-%d", number))
			if err != nil {
				return err
			}
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
			if err := bind(merged, path, false); err != nil {
				return err
			}
		}
		if err := allow(path, 0o055); err != nil {
			return err
		}
		for folder := filepath.Dir(path); folder != "/"; folder = filepath.Dir(folder) {
			if err := allow(folder, 0o011); err != nil {
				return err
			}
		}
	}
	return nil
}

func isShown(wanted *specification, path string) (bool, error) {
	for _, volume := range wanted.Mounts {
		// What a former container of the pod exposed there is a mount point in the volume by now, and empty.
		if strings.HasPrefix(path+"/", volume.Target+"/") {
			return false, nil
		}
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	var own, top syscall.Stat_t
	if err := syscall.Stat(filepath.Join(host, path), &own); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	if err := syscall.Stat(host, &top); err != nil {
		return false, err
	}
	return own.Dev == top.Dev, nil
}

// allow adds rights to a folder where it lacks them.
func allow(path string, rights os.FileMode) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&rights == rights {
		return nil
	}
	return os.Chmod(path, info.Mode().Perm()|rights)
}

func writeFiles(wanted *specification) error {
	for path, content := range wanted.Files {
		// What is there may be a link to a file that is elsewhere on the machine.
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return syscall.Sethostname([]byte(wanted.Hostname))
}

func mountVolumes(wanted *specification) error {
	for _, volume := range wanted.Mounts {
		source := filepath.Join(host, volume.Source)
		info, err := os.Stat(source)
		if err != nil {
			return err
		}
		if err := makeTarget(volume.Target, info.IsDir()); err != nil {
			return err
		}
		if err := bind(source, volume.Target, volume.ReadOnly); err != nil {
			return err
		}
	}
	return os.MkdirAll(wanted.WorkingDir, 0o755)
}

func makeTarget(path string, isFolder bool) error {
	if isFolder {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}

// closeRoot lets go of the machine's root and makes the container's own read-only where that is asked for.
func closeRoot(wanted *specification) error {
	if err := syscall.Unmount(host, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the machine's root: %w", err)
	}
	if err := os.Remove(host); err != nil {
		return err
	}
	if !wanted.ReadOnly {
		return nil
	}
	isVolume := func(folder string) bool {
		return slices.ContainsFunc(wanted.Mounts, func(one mount) bool { return filepath.Clean(one.Target) == folder })
	}
	for _, folder := range append([]string{"/"}, scratch...) {
		if !isVolume(folder) {
			if err := makeReadOnly(folder); err != nil {
				return err
			}
		}
	}
	return nil
}

func becomeUser(wanted *specification) error {
	if wanted.NoRights {
		for capability := range uintptr(lastCapability + 1) {
			if err := prctl(prCapBSetDrop, capability); err != nil && !errors.Is(err, syscall.EINVAL) {
				return err
			}
		}
	}
	if err := syscall.Setgroups(wanted.Groups); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := syscall.Setgid(wanted.Group); err != nil {
		return fmt.Errorf("setgid: %w", err)
	}
	if err := syscall.Setuid(wanted.User); err != nil {
		return fmt.Errorf("setuid: %w", err)
	}
	if !wanted.NoNewRights {
		return nil
	}
	if _, _, number := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPriv, 1, 0, 0, 0, 0); number != 0 {
		return fmt.Errorf("no_new_privs: %w", number)
	}
	return nil
}

func execute(wanted *specification) error {
	os.Clearenv()
	for _, pair := range wanted.Environment {
		name, value, _ := strings.Cut(pair, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	if err := os.Chdir(wanted.WorkingDir); err != nil {
		return err
	}
	program, err := exec.LookPath(wanted.Argv[0])
	if err != nil {
		return err
	}
	empty, err := syscall.Open("/dev/null", syscall.O_RDONLY, 0)
	if err != nil {
		return err
	}
	if err := syscall.Dup2(empty, 0); err != nil {
		return err
	}
	// Setting the user clears the signal that the parent's end sends; the kernel forgets it with the credentials.
	if err := prctl(syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL)); err != nil {
		return err
	}
	return syscall.Exec(program, wanted.Argv, wanted.Environment)
}
