// Package topology knows under which switches the nodes of a cluster are, from what an administrator has written down.
// It is pure; package live keeps what it knows up to date.
package topology

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Place is where a node is in the network: under an access switch (asw), which is under a pod switch (psw).
type Place struct {
	AccessSwitch string
	PodSwitch    string
	Group        int // the number of the access switch in the table, from 0
	PodGroup     int // the number of the pod switch, likewise
}

// Table says where nodes are, by their addresses. The zero table knows no node. Nobody changes a table.
type Table struct {
	places map[netip.Addr]Place
	groups int
}

// Groups is the number of access switches.
func (t *Table) Groups() int { return t.groups }

// Nodes is the number of addresses.
func (t *Table) Nodes() int { return len(t.places) }

// Find is the place of the first of a node's addresses that the table has, and that address.
func (t *Table) Find(addresses ...string) (Place, netip.Addr, bool) {
	for _, text := range addresses {
		address, err := netip.ParseAddr(text)
		if err != nil {
			continue // a pod without an address has an empty one
		}
		if place, there := t.places[address.Unmap()]; there {
			return place, address.Unmap(), true
		}
	}
	return Place{}, netip.Addr{}, false
}

// warningsMax is how many wrong lines are named one by one.
const warningsMax = 20

// Parse reads lines of "asw psw address", whose words are separated by blanks, tabs or commas. # begins a comment.
// Lines that are wrong are left out, with a sentence for people about each; of two lines about one address the last
// counts.
func Parse(text string) (*Table, []string) {
	reader := reader{table: Table{places: map[netip.Addr]Place{}}, lines: map[netip.Addr]int{}}
	text = strings.TrimPrefix(text, "\ufeff")
	for number, line := range slices.Collect(strings.Lines(text)) {
		reader.read(number+1, line)
	}
	if reader.more > 0 {
		reader.warnings = append(reader.warnings, fmt.Sprintf("and %d more lines", reader.more))
	}
	reader.number()
	return &reader.table, reader.warnings
}

type reader struct {
	table    Table
	lines    map[netip.Addr]int // which line a place is from
	warnings []string
	more     int
}

func (r *reader) warn(line int, format string, values ...any) {
	if len(r.warnings) == warningsMax {
		r.more++
		return
	}
	r.warnings = append(r.warnings, fmt.Sprintf("line %d: ", line)+fmt.Sprintf(format, values...))
}

func (r *reader) read(number int, line string) {
	line, _, _ = strings.Cut(line, "#")
	words := strings.FieldsFunc(line, func(c rune) bool { return strings.ContainsRune(" \t\r\n,", c) })
	if len(words) == 0 {
		return
	}
	if len(words) != 3 {
		r.warn(number, "%s: expected 3 words, not %d, as in: asw-0 psw-0 192.168.0.1", quote(line), len(words))
		return
	}
	for _, name := range words[:2] {
		if len(validation.IsValidLabelValue(name)) > 0 {
			r.warn(number, "%s is no name of a switch; expected at most 63 letters, digits, '-', '_' and '.', letters or "+
				"digits at its ends", quote(name))
			return
		}
	}
	address, err := netip.ParseAddr(strings.Trim(words[2], "[]"))
	if err != nil || address.Zone() != "" {
		r.warn(number, "%s is no address; expected one as 192.168.0.1 or fd00::1", quote(words[2]))
		return
	}
	r.place(number, address.Unmap(), Place{AccessSwitch: words[0], PodSwitch: words[1]})
}

func (r *reader) place(line int, address netip.Addr, place Place) {
	if before, there := r.table.places[address]; there && before != place {
		r.warn(line, "%s is under %s and %s here, and under %s and %s in line %d; this line counts", address,
			place.AccessSwitch, place.PodSwitch, before.AccessSwitch, before.PodSwitch, r.lines[address])
	}
	r.table.places[address], r.lines[address] = place, line
}

// number gives the switches that are left their numbers, in the order of the lines.
func (r *reader) number() {
	addresses := make([]netip.Addr, 0, len(r.lines))
	for address := range r.lines {
		addresses = append(addresses, address)
	}
	slices.SortFunc(addresses, func(a, b netip.Addr) int { return cmp.Compare(r.lines[a], r.lines[b]) })
	access, pod := map[string]int{}, map[string]int{}
	for _, address := range addresses {
		place := r.table.places[address]
		place.Group, place.PodGroup = numberOf(access, place.AccessSwitch), numberOf(pod, place.PodSwitch)
		r.table.places[address] = place
	}
	r.table.groups = len(access)
}

func numberOf(numbers map[string]int, name string) int {
	number, known := numbers[name]
	if !known {
		number = len(numbers)
		numbers[name] = number
	}
	return number
}

// quote shows a piece of somebody's text in a sentence.
func quote(text string) string {
	const most = 80
	text = strings.TrimSpace(text)
	if len(text) > most {
		text = text[:most] + "..."
	}
	return fmt.Sprintf("%q", text)
}
