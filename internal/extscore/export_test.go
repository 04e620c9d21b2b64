package extscore

// Read is read.
var Read = read
