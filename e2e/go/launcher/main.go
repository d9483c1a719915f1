// The launcher runs one container: a process in pid, mount, uts and ipc namespaces of its own. It is started in the
// network of the container's pod.
//
// The node agent writes a specification to its standard input. The first stage starts itself again in new namespaces;
// the second stage (root.go) builds the root and executes the container's command.
// The first stage passes SIGTERM on and ends with the container's exit code, 128 + n where signal n killed it, as a
// container runtime reports it (unshare of util-linux reports 1 for SIGKILL, which is why this is not a shell script).
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

// Exit code of a container that could not be started, as container runtimes have it.
const exitStartError = 128

// specification is what the agent asks for. Paths on the machine are absolute and free of symbolic links.
type specification struct {
	Folder      string            `json:"folder"`        // empty folder of the machine, for the root's mounts
	Hostname    string            `json:"hostname"`      //
	Argv        []string          `json:"argv"`          //
	Environment []string          `json:"environment"`   // NAME=value
	WorkingDir  string            `json:"working_dir"`   //
	Exposed     []string          `json:"exposed"`       // folders of the machine that the image consists of
	Files       map[string]string `json:"files"`         // path in the container -> content
	Mounts      []mount           `json:"mounts"`        // volumes, in this order
	User        int               `json:"user"`          //
	Group       int               `json:"group"`         //
	Groups      []int             `json:"groups"`        // supplementary groups
	ReadOnly    bool              `json:"read_only"`     // root file system
	NoNewRights bool              `json:"no_new_rights"` // allowPrivilegeEscalation: false
	NoRights    bool              `json:"no_rights"`     // capabilities: drop ALL
}

type mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only"`
}

func init() {
	// The child's parent is this thread: its end would kill the child.
	runtime.LockOSThread()
}

func main() {
	var err error
	if len(os.Args) == 2 && os.Args[1] == "inside" {
		err = runInside()
	} else {
		err = runOutside()
	}
	fmt.Fprintln(os.Stderr, "container:", err)
	os.Exit(exitStartError)
}

func runOutside() error {
	// A node agent that is killed takes its containers along, as a machine that loses power does.
	if err := prctl(syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL)); err != nil {
		return err
	}
	content, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	child := exec.Command("/proc/self/exe", "inside")
	child.Stdin = strings.NewReader(string(content))
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.Env = []string{}
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := child.Start(); err != nil {
		return err
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	go func() {
		for number := range asked {
			_ = child.Process.Signal(number) // it may have ended by now
		}
	}()
	_ = child.Wait() // its error is the exit status, read below
	status := child.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		os.Exit(128 + int(status.Signal()))
	}
	os.Exit(status.ExitStatus())
	return nil
}

func prctl(option int, argument uintptr) error {
	if _, _, number := syscall.RawSyscall6(syscall.SYS_PRCTL, uintptr(option), argument, 0, 0, 0, 0); number != 0 {
		return fmt.Errorf("prctl %d: %w", option, number)
	}
	return nil
}
