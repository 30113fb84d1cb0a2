package link

import (
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"phalanx/operator/internal/link/platformpb"
)

const (
	// A text is longer for no master, which cuts it.
	mostTextBytes = 512
	// A master takes messages of 1 MiB; the rest is for what the view is put into, and its generation.
	mostViewBytes = 1<<20 - 64
)

// legible makes each text of a message UTF-8, and short: whoever has made one, of whatever a container has said last, a
// message that is not legible ends the stream.
func legible(message protoreflect.Message) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Kind() == protoreflect.StringKind && !field.IsList():
			message.Set(field, protoreflect.ValueOfString(legibleText(value.String())))
		case field.Kind() == protoreflect.MessageKind && field.IsList():
			for i := range value.List().Len() {
				legible(value.List().Get(i).Message())
			}
		}
		return true
	})
}

func legibleText(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= mostTextBytes {
		return text
	}
	end := mostTextBytes
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// fit leaves out of a view what one message has no room for: what a job can do without first. It says what that was;
// empty: nothing.
func fit(view *platformpb.PlatformView) string {
	excess := proto.Size(view) - mostViewBytes
	if excess <= 0 {
		return ""
	}
	view.Places, excess = shorten(view.Places, excess)
	if excess <= 0 {
		return "places in the network"
	}
	for _, departure := range view.Departures {
		departure.Name, departure.Reason = "", ""
	}
	excess = proto.Size(view) - mostViewBytes
	if excess <= 0 {
		return "places in the network, and why nodes go"
	}
	view.Departures, _ = shorten(view.Departures, excess)
	return "places in the network, why nodes go, and some that go"
}

// shorten takes the last ones away until so many bytes are saved. It returns what is left to be saved.
func shorten[M proto.Message](list []M, excess int) ([]M, int) {
	for excess > 0 && len(list) > 0 {
		last := len(list) - 1
		excess -= protowire.SizeTag(1) + protowire.SizeBytes(proto.Size(list[last]))
		list = list[:last]
	}
	return list, excess
}
