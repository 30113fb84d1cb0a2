package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// guide is the table of DLRover's guide.
const guide = `
asw-0 psw-0 192.168.0.0
asw-1 psw-0 192.168.0.1
asw-2 psw-0 192.168.0.2
asw-3 psw-0 192.168.0.3
asw-0 psw-0 192.168.0.4
asw-1 psw-0 192.168.0.5
asw-2 psw-0 192.168.0.6
asw-3 psw-0 192.168.0.7
asw-0 psw-0 192.168.0.8
asw-1 psw-0 192.168.0.9
`

func TestParse(t *testing.T) {
	const (
		twice = "line 2: 10.0.0.1 is under b and q here, and under a and p in line 1; this line counts"
		short = `line 1: "asw-0 psw-0": expected 3 words, not 2, as in: asw-0 psw-0 192.168.0.1`
	)
	cases := map[string]struct {
		text     string
		find     string // an address
		place    Place
		warnings []string // the beginning of each
	}{
		"the guide's":  {guide, "192.168.0.5", Place{"asw-1", "psw-0", 1, 0}, nil},
		"two pods":     {"a p 10.0.0.1\nb q 10.0.0.2\nc q 10.0.0.3", "10.0.0.3", Place{"c", "q", 2, 1}, nil},
		"empty":        {" \n\n", "", Place{}, nil},
		"commas":       {"a,p,10.0.0.1\nb, p ,10.0.0.2", "10.0.0.2", Place{"b", "p", 1, 0}, nil},
		"tabs, CRLF":   {"a\tp\t10.0.0.1\r\n", "10.0.0.1", Place{"a", "p", 0, 0}, nil},
		"comments":     {"# asw psw ip\na p 10.0.0.1 # the first\n", "10.0.0.1", Place{"a", "p", 0, 0}, nil},
		"IPv6":         {"a p fd00::0:1\nb p [fd00::2]", "fd00::1", Place{"a", "p", 0, 0}, nil},
		"IPv4 in IPv6": {"a p ::ffff:10.0.0.1", "10.0.0.1", Place{"a", "p", 0, 0}, nil},
		"byte order":   {"\ufeffa p 10.0.0.1", "10.0.0.1", Place{"a", "p", 0, 0}, nil},
		"the same":     {"a p 10.0.0.1\na p 10.0.0.1", "10.0.0.1", Place{"a", "p", 0, 0}, nil},
		"the last":     {"a p 10.0.0.1\nb q 10.0.0.1", "10.0.0.1", Place{"b", "q", 0, 0}, []string{twice}},
		"two words":    {"asw-0 psw-0\nb p 10.0.0.2", "10.0.0.2", Place{"b", "p", 0, 0}, []string{short}},
		"four words": {"a p 10.0.0.1 10.0.0.2", "", Place{}, []string{
			`line 1: "a p 10.0.0.1 10.0.0.2": expected 3 words, not 4`,
		}},
		"no address":    {"a p node-7", "", Place{}, []string{`line 1: "node-7" is no address`}},
		"a zone":        {"a p fe80::1%eth0", "", Place{}, []string{`line 1: "fe80::1%eth0" is no address`}},
		"a wrong name":  {"a/b p 10.0.0.1", "", Place{}, []string{`line 1: "a/b" is no name of a switch`}},
		"a second line": {"\n\na p x", "", Place{}, []string{"line 3: "}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			table, warnings := Parse(tc.text)
			if len(warnings) != len(tc.warnings) {
				t.Fatalf("warnings: %q", warnings)
			}
			for i, want := range tc.warnings {
				if !strings.HasPrefix(warnings[i], want) {
					t.Errorf("warning %q, want %q", warnings[i], want)
				}
			}
			place, _, known := table.Find("", tc.find)
			if known != (tc.find != "") || place != tc.place {
				t.Errorf("found %v, want %v", place, tc.place)
			}
		})
	}
}

func TestManyWrongLinesAreCounted(t *testing.T) {
	_, warnings := Parse(strings.Repeat("x\n", 50))
	if len(warnings) != warningsMax+1 || warnings[warningsMax] != "and 30 more lines" {
		t.Errorf("%d warnings, the last %q", len(warnings), warnings[len(warnings)-1])
	}
}

func text(value string) *string { return &value }

func TestChange(t *testing.T) {
	table, _ := Parse("a p 1.0.0.1\nb p 1.0.0.2")
	ours := map[string]string{LabelGroup: "1", LabelGroupNum: "2", LabelGroupSize: "2", LabelRack: "b"}
	path := map[string]string{AnnotationPath: "p/b/1.0.0.2"}
	cases := map[string]struct {
		labels, annotations map[string]string
		address             string
		want                Change
	}{
		"new": {nil, nil, "1.0.0.2", Change{
			Labels: map[string]*string{
				LabelGroup: text("1"), LabelGroupNum: text("2"), LabelGroupSize: text("2"), LabelRack: text("b"),
			},
			Annotations: map[string]*string{AnnotationPath: text("p/b/1.0.0.2")},
		}},
		"as it should be": {ours, path, "1.0.0.2", Change{}},
		"unknown":         {nil, nil, "1.0.0.9", Change{}},
		"no address yet":  {nil, nil, "", Change{}},
		"of a user":       {map[string]string{LabelRack: "x"}, nil, "1.0.0.2", Change{}},
		"moved": {ours, path, "1.0.0.1", Change{
			Labels:      map[string]*string{LabelGroup: text("0"), LabelRack: text("a")},
			Annotations: map[string]*string{AnnotationPath: text("p/a/1.0.0.1")},
		}},
		"no longer known": {ours, path, "1.0.0.9", Change{
			Labels:      map[string]*string{LabelGroup: nil, LabelGroupNum: nil, LabelGroupSize: nil, LabelRack: nil},
			Annotations: map[string]*string{AnnotationPath: nil},
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, changed := table.Change(tc.labels, tc.annotations, tc.address)
			if changed != (len(tc.want.Labels) > 0) {
				t.Fatalf("changed: %v", changed)
			}
			if !changed {
				return
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// No text breaks the parser, and what it takes is what it was told: a table that is written anew reads the same.
func FuzzParse(f *testing.F) {
	seeds := []string{guide, "a,p,[fd00::1]", "a p x\n# \ufeff", "a p ::ffff:1.2.3.4", "\x00\xff a p 1.2.3.4"}
	for _, seed := range seeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input string) {
		table, warnings := Parse(input)
		if len(warnings) > warningsMax+1 {
			t.Fatalf("%d warnings", len(warnings))
		}
		var lines []string
		for address, place := range table.places {
			if place.Group < 0 || place.Group >= table.groups {
				t.Fatalf("group %d of %d", place.Group, table.groups)
			}
			lines = append(lines, fmt.Sprintf("%06d %s %s %s", place.Group, place.AccessSwitch, place.PodSwitch, address))
		}
		slices.Sort(lines)
		var text strings.Builder
		for _, line := range lines {
			text.WriteString(line[strings.Index(line, " ")+1:] + "\n")
		}
		again, warnings := Parse(text.String())
		if len(warnings) > 0 || again.groups != table.groups {
			t.Fatalf("%q gives %q", text.String(), warnings)
		}
		if diff := cmp.Diff(table.places, again.places, cmp.Comparer(func(a, b Place) bool { return a == b })); diff != "" {
			t.Fatal(diff)
		}
	})
}
