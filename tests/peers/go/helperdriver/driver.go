package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

const class = "device"

// driver implements kubeletplugin.DRAPlugin; all it knows about claims lies in its checkpoint.
type driver struct {
	settings
	checkpointFile string
	cdiCache       *cdi.Cache
	vendor         string
	stop           context.CancelFunc
	failed         context.Context
	fail           context.CancelCauseFunc
	ledgerLock     sync.Mutex
}

// checkpoint is what was prepared, by claim UID.
type checkpoint map[types.UID][]preparedDevice

type preparedDevice struct {
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	ShareID string `json:"shareID,omitempty"`
	Admin   bool   `json:"admin,omitempty"`
}

// faults is the file that a test writes.
type faults struct {
	DelayMilliseconds   int               `json:"delay_ms"`
	PrepareError        string            `json:"prepare_error"`
	PrepareClaimErrors  map[string]string `json:"prepare_claim_errors"`
	PanicBeforePrepare  bool              `json:"panic_before_prepare"`
	PanicAfterPrepare   bool              `json:"panic_after_prepare"`
	Forget              []string          `json:"forget"`
	UnprepareError      string            `json:"unprepare_error"`
	UnprepareClaimError map[string]string `json:"unprepare_claim_errors"`
}

// entry is one line of the ledger.
type entry struct {
	Method     string              `json:"method"`
	PID        int                 `json:"pid"`
	PodUID     string              `json:"pod_uid"`
	Claims     []string            `json:"claims"`
	Parameters map[string][]string `json:"parameters,omitempty"`
	Reserved   map[string][]string `json:"reserved_for,omitempty"`
}

func newDriver(s settings, dataDir string, stop context.CancelFunc) (*driver, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(s.cdiRoot))
	if err != nil {
		return nil, fmt.Errorf("CDI: %w", err)
	}
	failed, fail := context.WithCancelCause(context.Background())
	d := &driver{
		settings:       s,
		checkpointFile: filepath.Join(dataDir, "checkpoint.json"),
		cdiCache:       cache,
		vendor:         "k8s." + s.driverName,
		stop:           stop,
		failed:         failed,
		fail:           fail,
	}
	return d, d.writeSpec("common", []cdispec.Device{d.device("common", "DRIVER="+s.driverName)})
}

// PrepareResourceClaims is idempotent: a claim that is prepared gets the same answer again.
func (d *driver) PrepareResourceClaims(
	_ context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	f, err := d.readFaults()
	if err != nil {
		return nil, err
	}
	if err := d.record("prepare", claims, nil); err != nil {
		return nil, err
	}
	time.Sleep(time.Duration(f.DelayMilliseconds) * time.Millisecond)
	if f.PanicBeforePrepare {
		panic("injected before prepare")
	}
	if f.PrepareError != "" {
		return nil, errors.New(f.PrepareError)
	}
	prepared, err := d.load()
	if err != nil {
		return nil, err
	}
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		if text, ok := f.PrepareClaimErrors[string(claim.UID)]; ok {
			results[claim.UID] = kubeletplugin.PrepareResult{Err: errors.New(text)}
			continue
		}
		results[claim.UID] = d.prepare(prepared, claim)
	}
	if err := d.store(prepared); err != nil {
		return nil, err
	}
	if f.PanicAfterPrepare {
		panic("injected after prepare")
	}
	for _, uid := range f.Forget {
		delete(results, types.UID(uid))
	}
	return results, nil
}

// UnprepareResourceClaims needs the checkpoint only, and is fine with claims that are not in it.
func (d *driver) UnprepareResourceClaims(
	_ context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	f, err := d.readFaults()
	if err != nil {
		return nil, err
	}
	if err := d.record("unprepare", nil, claims); err != nil {
		return nil, err
	}
	if f.UnprepareError != "" {
		return nil, errors.New(f.UnprepareError)
	}
	prepared, err := d.load()
	if err != nil {
		return nil, err
	}
	results := make(map[types.UID]error, len(claims))
	for _, claim := range claims {
		if text, ok := f.UnprepareClaimError[string(claim.UID)]; ok {
			results[claim.UID] = errors.New(text)
			continue
		}
		results[claim.UID] = d.cdiCache.RemoveSpec(d.specName(string(claim.UID)))
		delete(prepared, claim.UID)
	}
	return results, d.store(prepared)
}

func (d *driver) prepare(prepared checkpoint, claim *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	devices, ok := prepared[claim.UID]
	if !ok {
		var err error
		if devices, err = d.choose(prepared, claim); err != nil {
			return kubeletplugin.PrepareResult{Err: err}
		}
	}
	specs := make([]cdispec.Device, 0, len(devices))
	result := kubeletplugin.PrepareResult{}
	for _, device := range devices {
		name := string(claim.UID) + "-" + device.Device
		specs = append(specs, d.device(name, "DEVICE_"+device.Device+"="+string(claim.UID)))
		result.Devices = append(result.Devices, d.answer(device, name))
	}
	// Written on each call, since the directory does not survive a boot.
	if err := d.writeSpec(string(claim.UID), specs); err != nil {
		return kubeletplugin.PrepareResult{Err: err}
	}
	prepared[claim.UID] = devices
	return result
}

func (d *driver) answer(device preparedDevice, name string) kubeletplugin.Device {
	answer := kubeletplugin.Device{
		Requests:   []string{device.Request},
		PoolName:   device.Pool,
		DeviceName: device.Device,
		CDIDeviceIDs: []string{
			d.vendor + "/" + class + "=common",
			d.vendor + "/" + class + "=" + name,
		},
	}
	if device.ShareID != "" {
		shareID := types.UID(device.ShareID)
		answer.ShareID = &shareID
	}
	return answer
}

// choose takes this driver's devices of the claim, unless one is unknown or held by another claim.
func (d *driver) choose(prepared checkpoint, claim *resourceapi.ResourceClaim) ([]preparedDevice, error) {
	var devices []preparedDevice
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != d.driverName {
			continue
		}
		if result.Pool != d.nodeName || !d.has(result.Device) {
			return nil, fmt.Errorf("requested device is not allocatable: %s", result.Device)
		}
		device := preparedDevice{
			Request: result.Request,
			Pool:    result.Pool,
			Device:  result.Device,
			Admin:   result.AdminAccess != nil && *result.AdminAccess,
		}
		if result.ShareID != nil {
			device.ShareID = string(*result.ShareID)
		}
		if holder := prepared.holder(device, claim.UID); holder != "" {
			return nil, fmt.Errorf("device %s is in use by claim %s", device.Device, holder)
		}
		devices = append(devices, device)
	}
	return devices, nil
}

func (d *driver) has(name string) bool {
	for i := range d.deviceCount {
		if deviceName(i) == name {
			return true
		}
	}
	return false
}

// holder returns the claim other than mine that has the device exclusively or in the same share.
func (c checkpoint) holder(device preparedDevice, mine types.UID) types.UID {
	for uid, devices := range c {
		if uid == mine {
			continue
		}
		for _, other := range devices {
			if other.Device == device.Device && !other.Admin && !device.Admin &&
				(other.ShareID == "" || device.ShareID == "" || other.ShareID == device.ShareID) {
				return uid
			}
		}
	}
	return ""
}

func (d *driver) device(name, environment string) cdispec.Device {
	return cdispec.Device{Name: name, ContainerEdits: cdispec.ContainerEdits{Env: []string{environment}}}
}

func (d *driver) writeSpec(id string, devices []cdispec.Device) error {
	spec := &cdispec.Spec{Kind: d.vendor + "/" + class, Devices: devices}
	version, err := cdi.MinimumRequiredVersion(spec)
	if err != nil {
		return fmt.Errorf("CDI version: %w", err)
	}
	spec.Version = version
	return d.cdiCache.WriteSpec(spec, d.specName(id))
}

func (d *driver) specName(id string) string {
	return cdi.GenerateTransientSpecName(d.vendor, class, id)
}

func (d *driver) load() (checkpoint, error) {
	prepared := checkpoint{}
	data, err := os.ReadFile(d.checkpointFile)
	if errors.Is(err, os.ErrNotExist) {
		return prepared, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &prepared)
	}
	return prepared, err
}

func (d *driver) store(prepared checkpoint) error {
	data, err := json.Marshal(prepared)
	if err != nil {
		return err
	}
	temporary := fmt.Sprintf("%s.%d", d.checkpointFile, os.Getpid())
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, d.checkpointFile)
}

func (d *driver) readFaults() (faults, error) {
	var f faults
	if d.faults == "" {
		return f, nil
	}
	data, err := os.ReadFile(d.faults)
	if errors.Is(err, os.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	return f, err
}

// record appends to the ledger before anything is done, so that a call that dies is in it too.
func (d *driver) record(
	method string, claims []*resourceapi.ResourceClaim, objects []kubeletplugin.NamespacedObject,
) error {
	if d.ledger == "" {
		return nil
	}
	e := entry{Method: method, PID: os.Getpid(), PodUID: d.podUID, Claims: []string{}}
	for _, object := range objects {
		e.Claims = append(e.Claims, string(object.UID))
	}
	for _, claim := range claims {
		e.add(claim)
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	d.ledgerLock.Lock()
	defer d.ledgerLock.Unlock()
	file, err := os.OpenFile(d.ledger, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}

func (e *entry) add(claim *resourceapi.ResourceClaim) {
	uid := string(claim.UID)
	e.Claims = append(e.Claims, uid)
	for _, config := range claim.Status.Allocation.Devices.Config {
		if config.Opaque != nil {
			if e.Parameters == nil {
				e.Parameters = map[string][]string{}
			}
			text := config.Opaque.Driver + " " + string(config.Opaque.Parameters.Raw)
			e.Parameters[uid] = append(e.Parameters[uid], text)
		}
	}
	for _, consumer := range claim.Status.ReservedFor {
		if e.Reserved == nil {
			e.Reserved = map[string][]string{}
		}
		e.Reserved[uid] = append(e.Reserved[uid], string(consumer.UID))
	}
	slices.Sort(e.Reserved[uid])
}
