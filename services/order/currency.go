package order

import "strings"

// minorUnits is how many decimals an amount in a currency has: the active codes
// of ISO 4217 that have any number of them, as of 2026.
var minorUnits = func() map[string]int32 {
	units := make(map[string]int32)
	for decimals, codes := range map[int32]string{
		0: `BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF`,
		2: `AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD
			CAD CDF CHE CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP
			GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK
			LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO
			NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS
			SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UZS VED VES WST XCD
			XCG YER ZAR ZMW ZWG`,
		3: `BHD IQD JOD KWD LYD OMR TND`,
		4: `CLF UYW`,
	} {
		for code := range strings.FieldsSeq(codes) {
			units[code] = decimals
		}
	}
	return units
}()
