// Command cdiresolve asks the CDI reference library what container runtimes would ask it.
//
// It resolves the given device ids in the given directories, injects them into an empty OCI spec and
// prints one JSON object: the unresolved ids, what the library found wrong with files, and the spec.
// The exit code is 0 only if every id was resolved and injected.
//
//	cdiresolve -dir /etc/cdi -dir /var/run/cdi vendor.com/class=name ...
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// report is what is printed.
type report struct {
	Resolved   []string            `json:"resolved"`
	Unresolved []string            `json:"unresolved"`
	FileErrors map[string][]string `json:"file_errors"`
	Error      string              `json:"error"`
	OCI        *oci.Spec           `json:"oci"`
}

// directories collects repeated flags; a later one wins over an earlier one.
type directories []string

func (d *directories) String() string { return strings.Join(*d, ",") }

func (d *directories) Set(value string) error {
	*d = append(*d, value)
	return nil
}

func main() {
	var dirs directories
	flag.Var(&dirs, "dir", "CDI spec directory, repeatable")
	flag.Parse()
	if len(dirs) == 0 || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: cdiresolve -dir DIR [-dir DIR] ID...")
		os.Exit(2)
	}
	result := resolve(dirs, flag.Args())
	encoder := json.NewEncoder(os.Stdout)
	if err := encoder.Encode(result); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if result.Error != "" || len(result.Unresolved) > 0 {
		os.Exit(1)
	}
}

// resolve answers for all ids.  The library is known to panic on some malformed ids, which a
// runtime would do too, so a panic is an answer here.
func resolve(dirs, ids []string) (result report) {
	result = report{
		Resolved:   []string{},
		Unresolved: []string{},
		FileErrors: map[string][]string{},
	}
	defer func() {
		if reason := recover(); reason != nil {
			result.Error = fmt.Sprintf("panic: %v", reason)
		}
	}()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		result.Error = err.Error()
		return result
	}
	for path, problems := range cache.GetErrors() {
		for _, problem := range problems {
			result.FileErrors[path] = append(result.FileErrors[path], problem.Error())
		}
	}
	for _, id := range ids {
		if cache.GetDevice(id) == nil {
			result.Unresolved = append(result.Unresolved, id)
		} else {
			result.Resolved = append(result.Resolved, id)
		}
	}
	result.OCI = &oci.Spec{}
	if _, err := cache.InjectDevices(result.OCI, ids...); err != nil {
		result.Error = err.Error()
	}
	return result
}
