package link

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"golang.org/x/crypto/scrypt"
)

// How a token becomes certificates is written down in docs/formats/credentials.md.
const (
	saltText    = "phalanx credentials 1"
	scryptN     = 16_384
	scryptR     = 8
	scryptP     = 1
	rootBytes   = 32
	nameBytes   = 8
	scalarBytes = 48
	masterName  = "phalanx-master" // whom a job's programs expect, wherever it is
	roleURI     = "phalanx:role/platform"
)

// authority is what all programs that hold the same token come to.
type authority struct {
	name string
	key  *ecdsa.PrivateKey
}

// TLSOfToken makes the operator's side of a connection to the master of the job that has this token. It takes some
// 40 ms and 16 MiB.
func TLSOfToken(token string) (*tls.Config, error) {
	of, err := authorityOf(token)
	if err != nil {
		return nil, err
	}
	trusted, err := of.certificate()
	if err != nil {
		return nil, fmt.Errorf("making the authority's certificate: %w", err)
	}
	own, err := of.sign(trusted)
	if err != nil {
		return nil, fmt.Errorf("making the operator's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(trusted)
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: masterName, RootCAs: pool, Certificates: []tls.Certificate{own},
	}, nil
}

func authorityOf(token string) (authority, error) {
	root, err := scrypt.Key([]byte(token), []byte(saltText), scryptN, scryptR, scryptP, rootBytes)
	if err != nil {
		return authority{}, fmt.Errorf("scrypt: %w", err)
	}
	name, err := hkdf.Key(sha256.New, root, nil, "name", nameBytes)
	if err != nil {
		return authority{}, fmt.Errorf("hkdf: %w", err)
	}
	scalar, err := hkdf.Key(sha256.New, root, nil, "authority", scalarBytes)
	if err != nil {
		return authority{}, fmt.Errorf("hkdf: %w", err)
	}
	curve := elliptic.P256()
	least := big.NewInt(1)
	number := new(big.Int).SetBytes(scalar)
	number.Mod(number, new(big.Int).Sub(curve.Params().N, least)).Add(number, least)
	key, err := ecdsa.ParseRawPrivateKey(curve, number.FillBytes(make([]byte, 32)))
	if err != nil {
		return authority{}, fmt.Errorf("the authority's key: %w", err)
	}
	return authority{"phalanx job " + hex.EncodeToString(name), key}, nil
}

// Clocks of nodes may differ, and a job ends with its processes.
var (
	notBefore = time.Unix(0, 0)
	notAfter  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

func (a authority) certificate() (*x509.Certificate, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	subject, err := utf8Name(a.name)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, RawSubject: subject, NotBefore: notBefore, NotAfter: notAfter,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// utf8Name is the DER of CN=text as OpenSSL writes it. crypto/x509 finds an authority by the bytes of its name, and
// would itself write another kind of string.
func utf8Name(text string) ([]byte, error) {
	value := asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte(text)}
	return asn1.Marshal(pkix.RDNSequence{{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: value}}})
}

func (a authority) sign(trusted *x509.Certificate) (tls.Certificate, error) {
	serial, err := serialNumber()
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	role, err := url.Parse(roleURI)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "platform"}, NotBefore: notBefore, NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs: []*url.URL{role}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, trusted, key.Public(), a.key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func serialNumber() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}
